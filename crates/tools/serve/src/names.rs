//! Formats disk names with absolute paths and without key files.

use farblock_backends::Spec;
use farblock_host::key_file;
use farblock_host::url::Url;
use std::path::{Path, PathBuf};

/// Returns a disk's name with absolute paths.
pub fn name(spec: &Spec) -> String {
    let absolute = |path: &Path| std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    map_paths(spec, &absolute).to_string()
}

/// Returns a copy of the spec whose relative paths start at `directory`.
pub(super) fn seen_from(spec: &Spec, directory: &Path) -> Spec {
    map_paths(spec, &|path| directory.join(path))
}

/// Returns the spec with canonical paths, and without the keys of its URLs.
pub(super) fn absolute(spec: &Spec) -> Spec {
    let canonical = |path: &Path| {
        // Keep the name of a missing file, which cannot be opened anyway.
        std::fs::canonicalize(path)
            .or_else(|_| std::path::absolute(path))
            .unwrap_or_else(|_| path.to_owned())
    };
    let whole = mapped(spec.clone(), &|part| *part = part.without_front().clone());
    mapped(whole, &|leaf| match leaf {
        Spec::File(path) => *path = canonical(path),
        Spec::Remote(url) => *url = without_keys(url),
        _ => {}
    })
}

fn map_paths(spec: &Spec, map: &dyn Fn(&Path) -> PathBuf) -> Spec {
    mapped(spec.clone(), &|leaf| match leaf {
        Spec::File(path) => *path = map(path),
        Spec::Remote(url) => *url = with_keys_at(url, map),
        _ => {}
    })
}

fn mapped(mut spec: Spec, change: &dyn Fn(&mut Spec)) -> Spec {
    change(&mut spec);
    for part in spec.parts_mut() {
        *part = mapped(part.clone(), change);
    }
    spec
}

/// Returns a leg's URL without keys, so that the leg keeps its identity when its keys change.
pub(super) fn without_keys(url: &str) -> String {
    match url.parse::<Url>() {
        Ok(url) if url != url.without_keys() => url.without_keys().to_string(),
        _ => url.to_owned(),
    }
}

/// Returns a leg's URL, with `map` applied to the paths of its key files.
fn with_keys_at(url: &str, map: &dyn Fn(&Path) -> PathBuf) -> String {
    let Ok(mut parsed) = url.parse::<Url>() else { return url.to_owned() };
    let files: Vec<&mut PathBuf> = parsed.keys().filter(|path| key_file::is_file(path)).collect();
    if files.is_empty() {
        return url.to_owned();
    }
    files.into_iter().for_each(|path| *path = map(path));
    parsed.to_string()
}

/// Returns the key files of all remote disks in a spec.
#[cfg(any(test, target_os = "linux"))]
pub(super) fn key_files(spec: &Spec) -> Vec<PathBuf> {
    let leaves = spec.leaves();
    let urls = leaves.iter().filter_map(|leg| match leg {
        Spec::Remote(url) => url.parse::<Url>().ok(),
        _ => None,
    });
    let keys = urls.flat_map(|mut url| url.keys().map(std::mem::take).collect::<Vec<_>>());
    keys.filter(|path| key_file::is_file(path)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn key_files_of_legs_are_found_and_made_absolute() {
        let text = "mirror:a.img,nvme+tcp://a/n?dhchap-secret=h.key&tls-key=credential:t?create";
        let spec = Spec::parse(text).unwrap();
        assert_eq!(key_files(&spec), [PathBuf::from("h.key")]);
        let Spec::Mirror { legs, create: true, .. } = &spec else { panic!("{spec:?}") };
        let url = with_keys_at(&legs[1].to_string(), &|path| Path::new("/etc").join(path));
        let separator = std::path::MAIN_SEPARATOR;
        let wanted =
            format!("nvme+tcp://a/n?dhchap-secret=/etc{separator}h.key&tls-key=credential:t");
        assert_eq!(url, wanted);
        let plain = "nvme+tcp://a/n?tls-key=keyring:";
        assert_eq!(with_keys_at(plain, &|_| PathBuf::from("b")), plain);
    }
}
