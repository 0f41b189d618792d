//! Writes and reads a map by listener, whose keys are the listeners' text form.

use farblock_proto::controller::Entrance;
use serde::de::{Error, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;

pub(crate) fn serialize<S: Serializer, L: Serialize>(
    listeners: &BTreeMap<Entrance, L>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    serializer.collect_map(listeners.iter().map(|(entrance, it)| (entrance.to_string(), it)))
}

/// A key of the map. It has its own type, so that a parse error names the listener.
struct Key(Entrance);

impl<'de> Deserialize<'de> for Key {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map(Self).map_err(|_| {
            D::Error::custom(
                "this is not an IP address and port: write for example 192.0.2.7:4420 or \
                 rdma:192.0.2.7:4420",
            )
        })
    }
}

pub(crate) fn deserialize<'de, D: Deserializer<'de>, L: Deserialize<'de>>(
    deserializer: D,
) -> Result<BTreeMap<Entrance, L>, D::Error> {
    struct Listeners<L>(PhantomData<L>);

    impl<'de, L: Deserialize<'de>> Visitor<'de> for Listeners<L> {
        type Value = BTreeMap<Entrance, L>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("listeners by address")
        }

        fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
            let mut listeners = BTreeMap::new();
            while let Some(Key(entrance)) = map.next_key()? {
                listeners.insert(entrance, map.next_value()?);
            }
            Ok(listeners)
        }
    }

    deserializer.deserialize_map(Listeners(PhantomData))
}
