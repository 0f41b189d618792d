//! `farblock attach --all ADDR`: attaches every namespace that the discovery service lists.

use super::args::AttachArgs;
use super::settings::Settings;
use farblock_host::Options;
use farblock_host::url::Url;
use farblock_program::args::Global;
use farblock_program::discovery;
use farblock_program::error::{Failure, Result};
use farblock_program::output;
use farblock_program::remote;
use farblock_program::values::DiscoveryAddress;

/// Attaches each namespace. Continues with the next one after a failure.
pub(super) fn run(
    address: &DiscoveryAddress,
    args: &AttachArgs,
    global: &Global,
    attach: impl Fn(&AttachArgs) -> Result<()>,
) -> Result<()> {
    let mut args = AttachArgs { all: None, ..args.clone() };
    let options = remote::options(global, &args.digests);
    let asked = &address.url;
    let (address, entries) = discovery::ask_all(address, &options)?;
    for entry in entries.iter().filter(|entry| entry.is_referral()) {
        output::note(&format!(
            "{address} refers to {}, which does not answer: skipping its disks",
            farblock_host::entry_address(entry)
        ));
    }
    for entry in entries.iter().filter(|entry| farblock_host::lacks_zone(entry)) {
        output::note(&format!(
            "{address} lists the link-local address {} without an interface: skipping that path; \
             query the service at [ADDRESS%INTERFACE]",
            farblock_host::entry_address(entry)
        ));
    }
    let subsystems = by_name(discovery::urls(&entries, asked));
    if subsystems.is_empty() {
        return Err(Failure::run(format_args!(
            "{address} lists no subsystem that this host may use"
        )));
    }
    let (mut attached, mut failed) = (0, 0);
    for urls in &subsystems {
        args.urls.clone_from(urls);
        // List the namespaces with the same options with which the disks will connect.
        let namespaces = Settings::new(&args, global)
            .and_then(|settings| namespaces(urls, &settings.disk_options().connection));
        let disks = match namespaces {
            Ok(ids) => ids.iter().map(|&nsid| named(urls, nsid)).collect(),
            Err(failure) => {
                failure.report();
                failed += 1;
                Vec::new()
            }
        };
        for urls in disks {
            args.urls = urls;
            match attach(&args) {
                Ok(()) => attached += 1,
                Err(failure) => {
                    failure.report();
                    failed += 1;
                }
            }
        }
    }
    match (attached, failed) {
        (_, 1..) => Err(Failure::Reported),
        (0, 0) => {
            output::note(&format!("the subsystems that {address} lists have no namespaces"));
            Ok(())
        }
        _ => Ok(()),
    }
}

/// Groups URLs by subsystem: the URLs of one group are paths to the same namespaces.
fn by_name(urls: Vec<Url>) -> Vec<Vec<Url>> {
    let mut found: Vec<Vec<Url>> = Vec::new();
    for url in urls {
        match found.iter_mut().find(|others| others[0].subsystem == url.subsystem) {
            Some(others) if others.contains(&url) => {}
            Some(others) => others.push(url),
            None => found.push(vec![url]),
        }
    }
    found
}

/// Returns the namespace IDs that the first reachable path reports.
fn namespaces(urls: &[Url], options: &Options) -> Result<Vec<u32>> {
    let ask = |url| Ok(remote::connect(url, options)?.namespace_ids()?);
    let mut asked = urls.iter().map(ask);
    let first = asked.next().expect("a subsystem has a URL");
    first.or_else(|failure| asked.find_map(Result::ok).ok_or(failure))
}

fn named(urls: &[Url], nsid: u32) -> Vec<Url> {
    urls.iter().map(|url| Url { namespace: Some(nsid), ..url.clone() }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn discovered_urls_are_grouped_by_subsystem() {
        let urls = ["nvme+tcp://a/n", "nvme+tcp://a/m", "nvme+tcp://b/n", "nvme+tcp://a/n"];
        let found = by_name(urls.iter().map(|text| text.parse().expect("a URL")).collect());
        let texts = |urls: &[Url]| urls.iter().map(Url::to_string).collect::<Vec<_>>();
        assert_eq!(found.len(), 2);
        assert_eq!(texts(&found[0]), ["nvme+tcp://a/n", "nvme+tcp://b/n"]);
        assert_eq!(texts(&named(&found[1], 7)), ["nvme+tcp://a/m?ns=7"]);
    }
}
