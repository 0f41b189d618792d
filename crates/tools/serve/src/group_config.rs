//! The section `[group]` of `farblock.toml`. Each key corresponds to an option of `serve`.

use super::located::Source;
#[cfg(target_os = "linux")]
use crate::args::{EtcdArgs, GroupArgs, group_name};
use serde::Deserialize;
#[cfg(target_os = "linux")]
use std::path::{Path, PathBuf};
use toml::Spanned;

/// The default of `disk_flight`, the same as of `--disk-flight`.
#[cfg(target_os = "linux")]
const DISK_FLIGHT: std::time::Duration = std::time::Duration::from_secs(5);

/// The parsed section `[group]` of a configuration file.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(not(target_os = "linux"), allow(dead_code, reason = "only Linux has groups"))]
pub(super) struct GroupConfig {
    pub(super) name: Spanned<String>,
    etcd: Spanned<Vec<Spanned<String>>>,
    member: Option<Spanned<String>>,
    #[serde(default)]
    advertise: Vec<Spanned<String>>,
    #[serde(alias = "disk-flight")]
    disk_flight: Option<Spanned<String>>,
    #[serde(alias = "etcd-user")]
    etcd_user: Option<Spanned<String>>,
    #[serde(alias = "etcd-password-file")]
    etcd_password_file: Option<Spanned<String>>,
    #[serde(alias = "etcd-ca")]
    etcd_ca: Option<Spanned<String>>,
    #[serde(alias = "etcd-cert")]
    etcd_cert: Option<Spanned<String>>,
    #[serde(alias = "etcd-key")]
    etcd_key: Option<Spanned<String>>,
}

impl GroupConfig {
    /// Refuses the section: groups need Linux.
    #[cfg(not(target_os = "linux"))]
    pub(super) fn check(&self, source: &Source<'_>) -> Result<(), String> {
        Err(source.error(self.name.span(), "group", "groups need Linux: remove this section"))
    }

    /// Checks the settings without opening a file.
    #[cfg(target_os = "linux")]
    pub(super) fn check(&self, source: &Source<'_>) -> Result<(), String> {
        self.settings(source, Path::new("")).map(drop)
    }

    /// Returns the settings as options of the command line. Relative paths start at `folder`.
    #[cfg(target_os = "linux")]
    pub(super) fn settings(&self, source: &Source<'_>, folder: &Path) -> Result<GroupArgs, String> {
        let name = |text: &Spanned<String>, key: &str| {
            group_name(text.as_ref()).map_err(|what| {
                source.error_with_example(text.span(), &format!("group.{key}"), what)
            })
        };
        if self.etcd.as_ref().is_empty() {
            let what = "name the addresses of etcd";
            return Err(source.error_with_example(self.etcd.span(), "group.etcd", what));
        }
        for (index, url) in self.etcd.as_ref().iter().enumerate() {
            check_etcd(url.as_ref()).map_err(|what| {
                source.error_with_example(url.span(), &format!("group.etcd[{index}]"), what)
            })?;
        }
        for (index, address) in self.advertise.iter().enumerate() {
            check_advertised(address.as_ref()).map_err(|what| {
                let key = format!("group.advertise[{index}]");
                source.error_with_example(address.span(), &key, what)
            })?;
        }
        let flight = self.disk_flight.as_ref().map(|text| {
            crate::values::seconds(text.as_ref())
                .map_err(|what| source.error_with_example(text.span(), "group.disk_flight", what))
        });
        let texts = |all: &[Spanned<String>]| all.iter().map(|one| one.as_ref().clone()).collect();
        Ok(GroupArgs {
            group: Some(name(&self.name, "name")?),
            etcd: texts(self.etcd.as_ref()),
            member: self.member.as_ref().map(|member| name(member, "member")).transpose()?,
            advertise: texts(&self.advertise),
            disk_flight: flight.transpose()?.unwrap_or(DISK_FLIGHT),
            etcd_access: self.access(source, folder)?,
        })
    }

    #[cfg(target_os = "linux")]
    fn access(&self, source: &Source<'_>, folder: &Path) -> Result<EtcdArgs, String> {
        let pairs = [
            (("etcd_user", &self.etcd_user), ("etcd_password_file", &self.etcd_password_file)),
            (("etcd_cert", &self.etcd_cert), ("etcd_key", &self.etcd_key)),
        ];
        for (one, other) in pairs {
            for ((key, given), (missing, absent)) in [(one, other), (other, one)] {
                if let (Some(given), None) = (given, absent) {
                    let what = format!("it needs group.{missing}");
                    return Err(source.error(given.span(), &format!("group.{key}"), what));
                }
            }
        }
        if let (Some(given), None) = (&self.etcd_cert, &self.etcd_ca) {
            return Err(source.error(given.span(), "group.etcd_cert", "it needs group.etcd_ca"));
        }
        let file = |text: &Option<Spanned<String>>| {
            let text = text.as_ref()?.as_ref();
            Some(match text.starts_with(farblock_host::key_file::CREDENTIAL) {
                true => PathBuf::from(text),
                false => folder.join(text),
            })
        };
        Ok(EtcdArgs {
            etcd_user: self.etcd_user.as_ref().map(|user| user.as_ref().clone()),
            etcd_password_file: file(&self.etcd_password_file),
            etcd_ca: file(&self.etcd_ca),
            etcd_cert: file(&self.etcd_cert),
            etcd_key: file(&self.etcd_key),
        })
    }
}

#[cfg(target_os = "linux")]
pub(super) fn check_etcd(url: &str) -> Result<(), String> {
    let rest = url.strip_prefix("http://").or_else(|| url.strip_prefix("https://"));
    let place = rest.map(|rest| rest.trim_end_matches('/'));
    match place.map(crate::values::host_and_port) {
        Some(Ok((_, Some(_)))) => Ok(()),
        _ => Err(format!("{url} is not an address of etcd: use http://HOST:PORT or https://")),
    }
}

/// Checks an address at which hosts reach a member.
#[cfg(target_os = "linux")]
pub(super) fn check_advertised(address: &str) -> Result<(), String> {
    match crate::values::host_and_port(address) {
        Ok((_, Some(port))) if port != 0 => Ok(()),
        _ => Err(format!("{address} is not an address for hosts: use HOST:PORT")),
    }
}
