//! The settings of an attachment. They come from the command line, or from a TOML file with the
//! same names. The server reads them as JSON.

use super::args::{As, AttachArgs};
use super::ways::HERE;
use farblock_host::disk::{DiskOptions, Policy};
use farblock_host::key_file::is_file;
use farblock_host::{Group, Hash, HostId, Options, TcpOptions, url::Url};
use farblock_program::args::{Global, Timeout, in_words};
use farblock_program::configuration;
use farblock_program::error::{Failure, Result, os};
use farblock_program::remote;
use farblock_program::values::{self, Listen};
use farblock_reactor::{Congestion, EngineKind, Polling};
use serde::{Deserialize, Deserializer, Serialize, de};
use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;
use uuid::Uuid;

/// Maximum number of threads, as on the command line.
const MAX_THREADS: u16 = 64;

/// All settings of an attachment. In a file, the keys are the names of the options, with hyphens or
/// underscores.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
pub(crate) struct Settings {
    #[serde(deserialize_with = "texts", serialize_with = "as_texts")]
    pub(crate) urls: Vec<Url>,
    #[serde(rename = "as")]
    pub(crate) way: As,
    pub(crate) name: Option<String>,
    #[serde(deserialize_with = "text", serialize_with = "as_text")]
    pub(crate) iopolicy: Option<Policy>,
    #[serde(deserialize_with = "text", serialize_with = "as_text")]
    pub(crate) uuid: Option<Uuid>,
    #[serde(alias = "reconnect_delay", deserialize_with = "time", serialize_with = "as_time")]
    pub(crate) reconnect_delay: Option<Duration>,
    #[serde(alias = "ctrl_loss_timeout", deserialize_with = "time_or_never")]
    pub(crate) ctrl_loss_timeout: Option<Timeout>,
    #[serde(alias = "fast_io_fail_timeout", deserialize_with = "time_or_never")]
    pub(crate) fast_io_fail_timeout: Option<Timeout>,
    #[serde(alias = "keep_alive", deserialize_with = "time", serialize_with = "as_time")]
    pub(crate) keep_alive: Option<Duration>,
    #[serde(alias = "connect_wait", deserialize_with = "time", serialize_with = "as_time")]
    pub(crate) connect_wait: Option<Duration>,
    #[serde(deserialize_with = "time", serialize_with = "as_time")]
    pub(crate) quiesce: Option<Duration>,
    #[serde(alias = "header_digest")]
    pub(crate) header_digest: bool,
    #[serde(alias = "data_digest")]
    pub(crate) data_digest: bool,
    #[serde(alias = "dhchap_secret")]
    pub(crate) dhchap_secret: Option<PathBuf>,
    #[serde(alias = "dhchap_ctrl_secret")]
    pub(crate) dhchap_ctrl_secret: Option<PathBuf>,
    #[serde(alias = "dhchap_hashes", deserialize_with = "texts", serialize_with = "as_texts")]
    pub(crate) dhchap_hashes: Vec<Hash>,
    #[serde(alias = "dhchap_dhgroups", deserialize_with = "texts", serialize_with = "as_texts")]
    pub(crate) dhchap_dhgroups: Vec<Group>,
    #[serde(alias = "tls_key")]
    pub(crate) tls_key: Option<PathBuf>,
    pub(crate) concat: bool,
    #[serde(alias = "host_nqn", alias = "host-nqn", deserialize_with = "name")]
    pub(crate) hostnqn: Option<String>,
    #[serde(alias = "host_id", alias = "host-id")]
    #[serde(deserialize_with = "text", serialize_with = "as_text")]
    pub(crate) hostid: Option<HostId>,
    #[serde(alias = "read_only")]
    pub(crate) read_only: bool,
    pub(crate) shared: bool,
    #[serde(alias = "no_device")]
    pub(crate) no_device: bool,
    pub(crate) socket: Option<PathBuf>,
    #[serde(deserialize_with = "text", serialize_with = "as_text")]
    pub(crate) listen: Option<Listen>,
    pub(crate) mountpoint: Option<PathBuf>,
    #[serde(alias = "allow_other")]
    pub(crate) allow_other: bool,
    pub(crate) serial: Option<String>,
    pub(crate) threads: Option<u16>,
    #[cfg(target_os = "linux")]
    #[serde(alias = "no_sandbox")]
    pub(crate) no_sandbox: bool,
    #[serde(deserialize_with = "text", serialize_with = "as_text")]
    pub(crate) engine: Option<EngineKind>,
    #[serde(deserialize_with = "text", serialize_with = "as_text")]
    pub(crate) spin: Option<Polling>,
    #[serde(deserialize_with = "text", serialize_with = "as_text")]
    pub(crate) congestion: Option<Congestion>,
}

fn texts<'de, D: Deserializer<'de>, T: FromStr>(from: D) -> Result<Vec<T>, D::Error>
where
    T::Err: fmt::Display,
{
    let texts = Vec::<String>::deserialize(from)?;
    let parsed = texts.iter().map(|text| {
        text.parse().map_err(|error| de::Error::custom(format_args!("{text:?}: {error}")))
    });
    parsed.collect()
}

fn as_texts<S: serde::Serializer, T: fmt::Display>(values: &[T], to: S) -> Result<S::Ok, S::Error> {
    to.collect_seq(values.iter().map(T::to_string))
}

fn text<'de, D: Deserializer<'de>, T: FromStr>(from: D) -> Result<Option<T>, D::Error>
where
    T::Err: fmt::Display,
{
    let text = Option::<String>::deserialize(from)?;
    text.map(|text| text.parse().map_err(de::Error::custom)).transpose()
}

fn name<'de, D: Deserializer<'de>>(from: D) -> Result<Option<String>, D::Error> {
    let text = Option::<String>::deserialize(from)?;
    text.map(|text| values::nqn(&text).map_err(de::Error::custom)).transpose()
}

fn as_text<S: serde::Serializer, T: fmt::Display>(
    value: &Option<T>,
    to: S,
) -> Result<S::Ok, S::Error> {
    value.as_ref().map(T::to_string).serialize(to)
}

/// A time in a TOML file: a number of seconds, or text with a unit.
#[derive(Deserialize)]
#[serde(untagged)]
enum Written {
    Seconds(i64),
    Text(String),
}

impl Written {
    fn text(self) -> String {
        match self {
            Written::Seconds(seconds) => seconds.to_string(),
            Written::Text(text) => text,
        }
    }
}

fn written<'de, D: Deserializer<'de>>(from: D) -> Result<Option<String>, D::Error> {
    let hint = "write seconds, as in 30, or a text such as \"500ms\", \"2m\", \"1h\"";
    let written = Option::<Written>::deserialize(from).map_err(|_| de::Error::custom(hint))?;
    Ok(written.map(Written::text))
}

fn time<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Duration>, D::Error> {
    written(from)?.map(|text| values::seconds(&text).map_err(de::Error::custom)).transpose()
}

fn as_time<S: serde::Serializer>(time: &Option<Duration>, to: S) -> Result<S::Ok, S::Error> {
    time.map(in_words).serialize(to)
}

fn time_or_never<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Timeout>, D::Error> {
    written(from)?.map(|text| text.parse().map_err(de::Error::custom)).transpose()
}

impl Settings {
    /// Reads the command line, and the file that it names, if any.
    pub(crate) fn new(args: &AttachArgs, global: &Global) -> Result<Settings> {
        let mut settings = match (&args.config, &args.restore) {
            (Some(path), _) => read(path)?,
            (None, Some(name)) => {
                super::folder::check_name(name).map_err(Failure::Usage)?;
                let path = restored()?.join(format!("{name}.toml"));
                let mut settings = read(&path)?;
                if settings.name.as_ref().is_some_and(|other| other != name) {
                    return Err(Failure::usage(format_args!(
                        "{}: name: it must be {name:?}, like the name of the file",
                        path.display()
                    )));
                }
                settings.name = Some(name.clone());
                settings
            }
            (None, None) => Settings::default(),
        };
        settings.take(args, global);
        settings.check().map_err(|problem| match (&args.config, &args.restore) {
            (None, None) => Failure::Usage(problem),
            (Some(path), _) => Failure::usage(format_args!("{}: {problem}", path.display())),
            (None, Some(name)) => Failure::usage(format_args!("{name}.toml: {problem}")),
        })?;
        settings.absolute()?;
        Ok(settings)
    }

    /// Overrides values from the file with options from the command line.
    fn take(&mut self, args: &AttachArgs, global: &Global) {
        fn over<T: Clone>(place: &mut Option<T>, given: &Option<T>) {
            if given.is_some() {
                place.clone_from(given);
            }
        }
        fn all_over<T: Clone>(place: &mut Vec<T>, given: &Vec<T>) {
            if !given.is_empty() {
                place.clone_from(given);
            }
        }
        all_over(&mut self.urls, &args.urls);
        self.way = args.way.unwrap_or(self.way);
        over(&mut self.name, &args.name);
        let (disk, offer) = (&args.disk, &args.offer);
        over(&mut self.uuid, &disk.uuid);
        over(&mut self.iopolicy, &disk.iopolicy);
        over(&mut self.reconnect_delay, &disk.reconnect_delay);
        over(&mut self.ctrl_loss_timeout, &disk.ctrl_loss_timeout);
        over(&mut self.fast_io_fail_timeout, &disk.fast_io_fail_timeout);
        over(&mut self.keep_alive, &disk.keep_alive);
        over(&mut self.connect_wait, &disk.connect_wait);
        over(&mut self.quiesce, &disk.quiesce);
        self.header_digest |= args.digests.header_digest;
        self.data_digest |= args.digests.data_digest;
        over(&mut self.dhchap_secret, &args.digests.dhchap_secret);
        over(&mut self.dhchap_ctrl_secret, &args.digests.dhchap_ctrl_secret);
        all_over(&mut self.dhchap_hashes, &args.digests.dhchap_hashes);
        all_over(&mut self.dhchap_dhgroups, &args.digests.dhchap_dhgroups);
        over(&mut self.tls_key, &args.digests.tls_key);
        self.concat |= args.digests.concat;
        over(&mut self.hostnqn, &args.digests.host.hostnqn);
        over(&mut self.hostid, &args.digests.host.hostid);
        self.read_only |= offer.read_only;
        self.shared |= offer.shared;
        self.no_device |= offer.no_device;
        over(&mut self.socket, &offer.socket);
        over(&mut self.listen, &offer.listen);
        over(&mut self.mountpoint, &offer.mountpoint);
        self.allow_other |= offer.allow_other;
        over(&mut self.serial, &offer.serial);
        over(&mut self.threads, &offer.threads);
        #[cfg(target_os = "linux")]
        {
            self.no_sandbox |= offer.no_sandbox;
        }
        if self.engine.is_none() || global.engine != EngineKind::Auto {
            self.engine = Some(global.engine);
        }
        over(&mut self.spin, &global.spin());
        over(&mut self.congestion, &global.congestion);
    }

    /// Checks all values whose check needs no I/O.
    fn check(&self) -> Result<(), String> {
        if self.urls.is_empty() {
            return Err(
                "urls: the list is empty; write urls = [\"nvme+tcp://HOST/NQN?ns=1\"]".into()
            );
        }
        if let Some(url) = self.urls.iter().find(|url| url.subsystem.is_none()) {
            return Err(format!(
                "{url} names no subsystem: write {url}/NQN; `farblock discover {}` lists the \
                 subsystems",
                url.address()
            ));
        }
        let connection = self.disk_options().connection;
        self.urls.iter().try_for_each(|url| remote::one_host(url, &connection))?;
        if let Some(name) = &self.name {
            super::folder::check_name(name)?;
        }
        if self.reconnect_delay.is_some_and(|delay| delay.is_zero()) {
            return Err("a reconnect delay of 0 would reconnect without a pause: use 1s".into());
        }
        if self.threads.is_some_and(|threads| !(1..=MAX_THREADS).contains(&threads)) {
            return Err(format!("threads: use 1 to {MAX_THREADS}"));
        }
        if self.socket.is_some() && self.listen.is_some() {
            return Err("socket and listen exclude each other: keep one".into());
        }
        self.check_way()
    }

    /// Returns an error for an option that the chosen way to attach does not support.
    fn check_way(&self) -> Result<(), String> {
        use As::{Auto, Fuse, Iscsi, Nbd, Ublk, VhostUser, Winspd};
        let way = self.way;
        if way != Auto && !HERE.contains(&way) {
            let names: Vec<String> = HERE.iter().map(|way| way.name()).collect();
            return Err(format!(
                "{} is not a way to attach on this system: use --as auto or --as {}",
                way.name(),
                names.join(" or --as ")
            ));
        }
        let with_tls = |url: &Url| url.tcp.tls_key.is_some() || url.tcp.concatenate;
        let tls = self.tls_key.is_some() || self.concat || self.urls.iter().any(with_tls);
        if way == As::Nvme && tls {
            return Err("--as nvme does not support TLS, so nothing would be encrypted: use \
                        another --as, or `nvme connect --tls` with the key in the kernel's keyring \
                        (`--concat` without a key)"
                .into());
        }
        let limits = |url: &Url| !url.dhchap_hashes.is_empty() || !url.dhchap_dhgroups.is_empty();
        let limited = !self.dhchap_hashes.is_empty() || !self.dhchap_dhgroups.is_empty();
        if way == As::Nvme && (limited || self.urls.iter().any(limits)) {
            let error = "--as nvme does not support dhchap-hashes and dhchap-dhgroups, because the \
                         kernel accepts the target's choice: leave them out, or use another --as";
            return Err(error.to_owned());
        }
        for (option, given, ways) in [
            ("socket", self.socket.is_some(), &[Nbd, VhostUser][..]),
            ("listen", self.listen.is_some(), &[Nbd, Iscsi]),
            ("mountpoint", self.mountpoint.is_some(), &[Fuse]),
            ("allow-other", self.allow_other, &[Fuse]),
            ("serial", self.serial.is_some(), &[VhostUser, Iscsi]),
            ("no-device", self.no_device, &[Auto, Nbd, Fuse]),
            // Only these ways have the option: the kernel's own NVMe host lacks it.
            ("spin", self.spin.is_some(), &[Auto, Ublk, Nbd, Fuse, VhostUser, Iscsi, Winspd]),
            ("congestion", self.congestion.is_some(), &[Auto, Ublk, Nbd, Fuse, VhostUser, Iscsi]),
            ("read-only", self.read_only, &[Auto, Ublk, Nbd, Fuse, VhostUser, Iscsi, Winspd]),
        ] {
            if given && !ways.contains(&way) {
                let names: Vec<String> = ways.iter().map(|way| way.name()).collect();
                return Err(format!(
                    "{option} is only for --as {}: leave it out, or choose that way",
                    names.join(" or --as ")
                ));
            }
        }
        Ok(())
    }

    /// Makes paths absolute, because the daemon runs in another directory.
    fn absolute(&mut self) -> Result<()> {
        let own = [&mut self.socket, &mut self.mountpoint];
        let keys = [&mut self.dhchap_secret, &mut self.dhchap_ctrl_secret, &mut self.tls_key];
        let in_urls = self.urls.iter_mut().flat_map(|url| {
            [&mut url.dhchap_secret, &mut url.dhchap_ctrl_secret, &mut url.tcp.tls_key]
        });
        // Names of systemd credentials and of keys in a keyring are not paths.
        let is_file = |path: &&mut PathBuf| is_file(path);
        let keys = keys.into_iter().chain(in_urls).flatten().filter(is_file);
        for path in own.into_iter().flatten().chain(keys) {
            *path = std::path::absolute(&*path).map_err(|error| {
                Failure::run(format_args!("{}: {}", path.display(), os(&error)))
            })?;
        }
        Ok(())
    }

    pub(crate) fn disk_options(&self) -> DiskOptions {
        let usual = DiskOptions::default();
        let connection = Options {
            engine: self.engine.unwrap_or(EngineKind::Auto),
            dhchap_secret: self.dhchap_secret.clone(),
            dhchap_ctrl_secret: self.dhchap_ctrl_secret.clone(),
            dhchap_hashes: self.dhchap_hashes.clone(),
            dhchap_dhgroups: self.dhchap_dhgroups.clone(),
            tcp: TcpOptions {
                header_digest: self.header_digest,
                data_digest: self.data_digest,
                tls_key: self.tls_key.clone(),
                concatenate: self.concat,
            },
            hostnqn: self.hostnqn.clone(),
            hostid: self.hostid,
            keep_alive: self.keep_alive.unwrap_or(usual.connection.keep_alive),
            ..Options::default()
        };
        DiskOptions {
            connection,
            connect_wait: self.connect_wait.unwrap_or(usual.connect_wait),
            reconnect_delay: self.reconnect_delay.unwrap_or(usual.reconnect_delay),
            ctrl_loss_timeout: self.ctrl_loss_timeout.map_or(usual.ctrl_loss_timeout, |it| it.0),
            fast_io_fail_timeout: self
                .fast_io_fail_timeout
                .map_or(usual.fast_io_fail_timeout, |it| it.0),
            denied_timeout: usual.denied_timeout,
            policy: self.iopolicy.unwrap_or(usual.policy),
            uuid: self.uuid.map(Uuid::into_bytes),
            quiesce: self.quiesce.or(usual.quiesce),
            // Keep a disk in use even if its target breaks the protocol often: an operator may
            // repair the target.
            breaches_max: usual.breaches_max,
        }
    }

    pub(crate) fn engine(&self) -> EngineKind {
        self.engine.unwrap_or(EngineKind::Auto)
    }

    /// The limit on busy-polling by the event loops.
    pub(crate) fn spin(&self) -> Polling {
        self.spin.unwrap_or_default()
    }

    /// Number of threads; 0 selects a number that suits the machine.
    pub(crate) fn threads(&self) -> usize {
        self.threads.unwrap_or(0).into()
    }
}

/// The folder with the configuration files for `--restore`.
pub(super) fn restored() -> Result<PathBuf> {
    let elsewhere = std::env::var_os("FARBLOCK_ATTACH_DIR").map(PathBuf::from);
    elsewhere.map_or_else(super::system::configurations, Ok)
}

fn read(path: &Path) -> Result<Settings> {
    parse(path, &configuration::read(path)?).map_err(Failure::Usage)
}

fn parse(path: &Path, text: &str) -> Result<Settings, String> {
    let problem = |key: &str, error: &toml::de::Error| {
        let line = error
            .span()
            .map_or(1, |span| text[..span.start.min(text.len())].matches('\n').count() + 1);
        let threads = format!("a whole number from 1 to {MAX_THREADS}");
        let allowed = (key == "threads").then_some(threads.as_str());
        let what = configuration::in_words(error.message(), allowed);
        let key = if key.is_empty() || key == "." { String::new() } else { format!("{key}: ") };
        format!("{}:{line}: {key}{what}", path.display())
    };
    let deserializer = toml::de::Deserializer::parse(text).map_err(|error| problem("", &error))?;
    serde_path_to_error::deserialize(deserializer)
        .map_err(|error| problem(&error.path().to_string(), error.inner()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Result<Settings, String> {
        parse(Path::new("a.toml"), text)
    }

    #[test]
    fn configuration_keys_have_the_names_of_the_options() {
        let settings = parsed(
            "urls = ['nvme+tcp://a/n?ns=1', 'nvme+tcp://b/n?ns=1']\nas = 'iscsi'\n\
             iopolicy = 'round-robin'\nreconnect-delay = '500ms'\nctrl-loss-timeout = -1\n\
             fast-io-fail-timeout = 5\nkeep-alive = 0\nquiesce = '2s'\n\
             connect-wait = '1m'\nengine = 'portable'\nspin = 'latency'\nthreads = 2\n\
             uuid = '2d6f12ca-6c90-538f-a383-5ab39f554825'\n\
             hostnqn = 'nqn.2026-11.h:a'\nhostid = '01234567-89ab-cdef-0123-456789abcdef'\n",
        )
        .expect("valid settings");
        assert_eq!(settings.check(), Ok(()));
        let options = settings.disk_options();
        assert_eq!(options.policy, Policy::RoundRobin);
        assert_eq!(options.uuid.map(|uuid| uuid[..2] == [0x2d, 0x6f]), Some(true));
        assert_eq!(options.reconnect_delay, Duration::from_millis(500));
        assert_eq!(options.ctrl_loss_timeout, None);
        assert_eq!(options.fast_io_fail_timeout, Some(Duration::from_secs(5)));
        assert_eq!(options.connection.keep_alive, Duration::ZERO);
        assert_eq!(options.quiesce, Some(Duration::from_secs(2)));
        assert_eq!(options.connect_wait, Duration::from_secs(60));
        let host = options.connection.identity();
        let id = "01234567-89ab-cdef-0123-456789abcdef";
        assert_eq!((host.nqn.as_str(), host.id.to_string().as_str()), ("nqn.2026-11.h:a", id));
        assert_eq!((settings.engine(), settings.spin().name()), (EngineKind::Portable, "latency"));
        assert_eq!(settings.way, As::Iscsi);
        // The server reads the settings as JSON.
        let json = serde_json::to_string(&settings).expect("JSON");
        let again: Settings = serde_json::from_str(&json).expect("the settings parse again");
        assert_eq!(again.disk_options(), options);
        assert_eq!((again.urls, again.spin), (settings.urls, settings.spin));
    }

    #[test]
    fn configuration_keys_may_have_hyphens_or_underscores() {
        let text = "urls = ['nvme+tcp://a/n']\nreconnect_delay = 1\nctrl_loss_timeout = 'never'\n\
                    fast_io_fail_timeout = 2\nkeep_alive = 3\nconnect_wait = 4\n\
                    header_digest = true\ndata_digest = true\nread_only = true\n\
                    no_device = true\nallow_other = true\n";
        let hyphens = text.replace('_', "-");
        let (one, other) = (parsed(text).expect("valid settings"), parsed(&hyphens));
        assert_eq!(format!("{one:?}"), format!("{:?}", other.expect("valid settings")));
        assert!(one.allow_other && one.disk_options().connection.tcp.data_digest);
        assert!(parsed(&format!("{text}read-only = true\n")).is_err(), "twice");
    }

    #[test]
    fn configuration_errors_name_file_line_and_key() {
        for (text, parts) in [
            ("urls = ['x']", &["a.toml:1: urls", "nvme+tcp://"][..]),
            ("urls = 1", &["a.toml:1: urls", "list"]),
            ("\ndelay = 1", &["a.toml:2: ", "there is no key `delay`", "reconnect-delay"]),
            ("threads = 99999", &["a.toml:1: threads: this is the number 99999: write", "1 to 64"]),
            ("threads = 99999999999999999999", &["a.toml:1: threads: ", "1 to 64"]),
            ("read-only = 1", &["a.toml:1: read-only: this is the number 1: write true or false"]),
            ("as = 'scsi'", &["a.toml:1: as", "iscsi", "vhost-user"]),
            ("iopolicy = 'fastest'", &["iopolicy", "round-robin"]),
            ("uuid = 'x'", &["a.toml:1: uuid"]),
            ("hostnqn = ''", &["a.toml:1: hostnqn: ", "nqn.2026-11"]),
            ("hostid = 'x'", &["a.toml:1: hostid: ", "UUID"]),
            ("keep-alive = 'soon'", &["keep-alive", "500ms"]),
            ("keep-alive = true", &["keep-alive", "500ms"]),
            ("ctrl-loss-timeout = 'soon'", &["ctrl-loss-timeout", "never"]),
            ("urls = [", &["a.toml:1: "]),
        ] {
            let error = parsed(text).expect_err(text);
            parts.iter().for_each(|part| assert!(error.contains(part), "{error}"));
            assert_eq!(error.lines().count(), 1, "{error}");
        }
    }

    #[test]
    fn invalid_settings_are_refused() {
        let url = "urls = ['nvme+tcp://a/n']\n";
        for (text, part) in [
            ("", "urls"),
            ("urls = ['nvme+tcp://a']", "names no subsystem"),
            (&format!("{url}name = '../x'"), "name"),
            (&format!("{url}reconnect-delay = 0"), "without a pause"),
            ("urls = ['nvme+tcp://a/n?hostnqn=b']\nhostnqn = 'c'", "c, but b in the URL"),
            (&format!("{url}threads = 0"), "1 to 64"),
            (&format!("{url}as = 'iscsi'\nsocket = 'a'"), "--as nbd or --as vhost-user"),
            (&format!("{url}as = 'nbd'\nsocket = 'a'\nlisten = '127.0.0.1:0'"), "keep one"),
        ] {
            let error = parsed(text).expect("TOML").check().expect_err(text);
            assert!(error.contains(part), "{error}");
        }
    }
}
