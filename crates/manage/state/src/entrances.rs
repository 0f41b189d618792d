//! Writes and reads the listeners of a document, by their text form.

use crate::document::Listener;
use farblock_proto::controller::Entrance;
use serde::de::{Error, MapAccess, Visitor};
use serde::{Deserializer, Serializer};
use std::collections::BTreeMap;
use std::fmt;

pub(crate) fn serialize<S: Serializer>(
    listeners: &BTreeMap<Entrance, Listener>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    serializer.collect_map(listeners.iter().map(|(entrance, it)| (entrance.to_string(), it)))
}

pub(crate) fn deserialize<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<BTreeMap<Entrance, Listener>, D::Error> {
    struct Listeners;

    impl<'de> Visitor<'de> for Listeners {
        type Value = BTreeMap<Entrance, Listener>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("listeners by address")
        }

        fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
            let mut listeners = BTreeMap::new();
            while let Some(text) = map.next_key::<String>()? {
                let entrance = text.parse().map_err(|_| {
                    A::Error::custom(format_args!(
                        "{text:?} is not an address and port, as in 192.0.2.7:4420 or \
                         rdma:192.0.2.7:4420"
                    ))
                })?;
                listeners.insert(entrance, map.next_value()?);
            }
            Ok(listeners)
        }
    }

    deserializer.deserialize_map(Listeners)
}
