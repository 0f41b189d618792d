//! [`Name`]: the text form of an image and its cluster.

use std::fmt;
use std::str::FromStr;

use crate::limits::NAME_BYTES;

/// The name of an image: `pool/image` or `pool/namespace/image`, optionally followed by
/// `@snapshot`, `?conf=FILE` and `&id=USER`.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Name {
    /// The pool.
    pub pool: String,
    /// The namespace of the pool, which is unrelated to NVMe namespaces.
    pub namespace: Option<String>,
    /// The image.
    pub image: String,
    /// The snapshot; `None`: the image itself.
    pub snapshot: Option<String>,
    /// The configuration file; `None`: Ceph's default.
    pub conf: Option<String>,
    /// The client's name without `client.`; `None`: `admin`.
    pub id: Option<String>,
}

/// The error for a text that is not the name of an image. Its `Display` gives the reason in a
/// sentence.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NameError(String);

impl fmt::Display for NameError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for NameError {}

const EXAMPLE: &str = "write for example rbd:pool/image, rbd:pool/image@snapshot or \
                       rbd:pool/image?conf=/etc/ceph/ceph.conf&id=admin";

impl Name {
    /// Returns the client's name in the cluster.
    pub fn user(&self) -> &str {
        self.id.as_deref().unwrap_or("admin")
    }

    fn options(&mut self, text: &str) -> Result<(), NameError> {
        for option in text.split('&') {
            let refuse = || {
                NameError(format!(
                    "rbd: has no option {option:?}: its options are conf=FILE and id=USER"
                ))
            };
            let (key, value) = option.split_once('=').ok_or_else(refuse)?;
            let place = match key {
                "conf" => &mut self.conf,
                "id" => &mut self.id,
                _ => return Err(refuse()),
            };
            // Refuse relative paths, because they depend on the working directory.
            if key == "conf" && !value.starts_with('/') {
                return Err(NameError(format!("rbd: conf={value} is not an absolute path")));
            }
            if place.is_some() || value.is_empty() || value.contains('\0') {
                return Err(NameError(format!("rbd: needs exactly one value for {key}")));
            }
            *place = Some(value.to_owned());
        }
        Ok(())
    }
}

/// Checks that `text` is a valid component of a name in Ceph.
fn part(text: &str, whole: &str) -> Result<String, NameError> {
    let is_fine = !text.is_empty() && text.len() <= NAME_BYTES && !text.contains('\0');
    is_fine
        .then(|| text.to_owned())
        .ok_or_else(|| NameError(format!("rbd:{whole} names no image: {EXAMPLE}")))
}

impl FromStr for Name {
    type Err = NameError;

    /// Parses the text that follows `rbd:`.
    fn from_str(text: &str) -> Result<Name, NameError> {
        let (place, options) =
            text.split_once('?').map_or((text, None), |(place, rest)| (place, Some(rest)));
        let (path, snapshot) =
            place.split_once('@').map_or((place, None), |(path, rest)| (path, Some(rest)));
        let parts: Vec<&str> = path.split('/').collect();
        let (pool, namespace, image) = match parts[..] {
            [pool, image] => (pool, None, image),
            [pool, namespace, image] => (pool, Some(namespace), image),
            _ => return Err(NameError(format!("rbd:{text} names no image: {EXAMPLE}"))),
        };
        let mut name = Name {
            pool: part(pool, text)?,
            namespace: namespace.map(|namespace| part(namespace, text)).transpose()?,
            image: part(image, text)?,
            snapshot: snapshot.map(|snapshot| part(snapshot, text)).transpose()?,
            conf: None,
            id: None,
        };
        options.map_or(Ok(()), |options| name.options(options))?;
        Ok(name)
    }
}

/// Shows the name in the cluster, without `conf` and `id`.
impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/", self.pool)?;
        self.namespace.iter().try_for_each(|namespace| write!(f, "{namespace}/"))?;
        f.write_str(&self.image)?;
        self.snapshot.iter().try_for_each(|snapshot| write!(f, "@{snapshot}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn image_names_are_parsed() {
        let name: Name = "p/n/i@s?conf=/etc/a.conf&id=me".parse().unwrap();
        assert_eq!(name.to_string(), "p/n/i@s");
        assert_eq!((name.conf.as_deref(), name.user()), (Some("/etc/a.conf"), "me"));
        let name: Name = "p/i".parse().unwrap();
        assert_eq!((name.to_string(), name.user()), ("p/i".to_owned(), "admin"));
        assert!(name.snapshot.is_none() && name.conf.is_none());
    }

    #[test]
    fn invalid_image_names_are_refused() {
        let long = format!("p/{}", "i".repeat(NAME_BYTES + 1));
        for text in ["", "p", "p/", "/i", "p/i@", "a/b/c/d", "p//i", "p/i\0", &long] {
            let error = text.parse::<Name>().unwrap_err().to_string();
            assert!(error.contains("rbd:pool/image"), "{error}");
        }
        for text in ["p/i?", "p/i?x=1", "p/i?conf=", "p/i?id=a&id=b", "p/i?conf", "p/i?conf=a"] {
            assert!(text.parse::<Name>().is_err(), "{text}");
        }
    }
}
