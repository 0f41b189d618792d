//! The settings of a simulation.

use crate::error::SimulationError;
use crate::limits;
use farblock_host::disk::DiskOptions;
use serde::{Deserialize, Serialize};
use std::ops::RangeInclusive;
use std::str::FromStr;
use std::time::Duration;

/// A fleet, and the parameters of its scenes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Settings {
    /// The number of hosts, each on a separate machine.
    pub hosts: u32,
    /// The number of targets, each on a separate machine.
    pub targets: u32,
    /// The number of disks of each host, each on a different target.
    pub disks: u32,
    /// The time for which targets or a switch are down, in seconds.
    pub away: u32,
    /// The longest pause of a host between two attempts to connect, in seconds.
    pub reconnect: u32,
    /// The seed of all random choices.
    pub seed: u64,
    /// The processor time of a target for a new connection, in microseconds.
    pub accept_us: u32,
    /// The processor time of a target for each piece of data that a connection delivers, in
    /// microseconds.
    pub message_us: u32,
}

impl Settings {
    pub(crate) fn away_time(&self) -> Duration {
        Duration::from_secs(u64::from(self.away))
    }

    pub(crate) fn reconnect_delay(&self) -> Duration {
        Duration::from_secs(u64::from(self.reconnect))
    }

    /// If targets refuse hosts and no host resumes I/O for this time, the simulation gives up the
    /// scene; see [`STANDSTILL`](limits::STANDSTILL).
    pub(crate) fn standstill(&self) -> Duration {
        limits::STANDSTILL.max(limits::STANDSTILL_PAUSES * self.reconnect_delay())
    }

    /// The settings as text, in the form that the program accepts, to repeat the run.
    #[must_use]
    pub fn text(&self) -> String {
        let Settings { hosts, targets, disks, away, reconnect, seed, accept_us, message_us } = self;
        format!(
            "hosts={hosts},targets={targets},disks={disks},away={away},reconnect={reconnect},\
             seed={seed},accept-us={accept_us},message-us={message_us}"
        )
    }
}

impl FromStr for Settings {
    type Err = SimulationError;

    fn from_str(text: &str) -> Result<Settings, SimulationError> {
        let mut settings = Settings {
            hosts: 0,
            targets: 0,
            disks: 0,
            away: limits::AWAY_SECONDS,
            reconnect: DiskOptions::default().reconnect_delay.as_secs() as u32,
            seed: 1,
            accept_us: limits::ACCEPT_US,
            message_us: limits::MESSAGE_US,
        };
        parse(&mut settings, text)
            .and_then(|()| settings.complete())
            .map_err(|why| SimulationError::Settings { text: text.to_owned(), why })?;
        Ok(settings)
    }
}

/// The name and the range of each setting.
const HOSTS: (&str, RangeInclusive<u32>) = ("hosts", 1..=limits::HOSTS);
const TARGETS: (&str, RangeInclusive<u32>) = ("targets", 1..=limits::TARGETS);
const DISKS: (&str, RangeInclusive<u32>) = ("disks", 1..=limits::DISKS_PER_HOST);
const AWAY: (&str, RangeInclusive<u32>) = ("away", 1..=limits::AWAY_SECONDS_MAX);
const RECONNECT: (&str, RangeInclusive<u32>) = ("reconnect", 1..=600);
const ACCEPT: (&str, RangeInclusive<u32>) = ("accept-us", 0..=100_000);
const MESSAGE: (&str, RangeInclusive<u32>) = ("message-us", 0..=100_000);

fn parse(settings: &mut Settings, text: &str) -> Result<(), String> {
    let mut seen = Vec::new();
    for word in text.split(',') {
        let (name, value) = word.split_once('=').ok_or_else(|| {
            format!("{word:?} is not NAME=NUMBER, as in hosts=10000,targets=1000")
        })?;
        if seen.contains(&name) {
            return Err(format!("{name} is given twice"));
        }
        seen.push(name);
        match name {
            "hosts" => settings.hosts = within(&HOSTS, value)?,
            "targets" => settings.targets = within(&TARGETS, value)?,
            "disks" => settings.disks = within(&DISKS, value)?,
            "away" => settings.away = within(&AWAY, value)?,
            "reconnect" => settings.reconnect = within(&RECONNECT, value)?,
            "accept-us" => settings.accept_us = within(&ACCEPT, value)?,
            "message-us" => settings.message_us = within(&MESSAGE, value)?,
            "seed" => {
                let not = |_| format!("seed={value} is not a number from 0 to {}", u64::MAX);
                settings.seed = value.parse().map_err(not)?;
            }
            _ => {
                return Err(format!(
                    "there is no {name:?}: use hosts, targets, disks, away, reconnect, seed, \
                     accept-us or message-us"
                ));
            }
        }
    }
    Ok(())
}

fn within((name, range): &(&str, RangeInclusive<u32>), value: &str) -> Result<u32, String> {
    let number = value.parse().ok().filter(|number| range.contains(number));
    number.ok_or_else(|| {
        format!("{name}={value} is not a number from {} to {}", range.start(), range.end())
    })
}

impl Settings {
    /// Sets the missing settings to their defaults.
    fn complete(&mut self) -> Result<(), String> {
        for (name, value) in [("hosts", self.hosts), ("targets", self.targets)] {
            if value == 0 {
                return Err(format!("{name}=NUMBER is missing, as in hosts=10000,targets=1000"));
            }
        }
        if self.disks == 0 {
            self.disks = limits::DISKS.min(self.targets);
        }
        if self.disks > self.targets {
            return Err(format!(
                "disks={}: each disk of a host is on a different target, but targets={}",
                self.disks, self.targets
            ));
        }
        let (all, most) = (self.hosts * self.disks, limits::DISKS_ALL);
        if all > most {
            return Err(format!(
                "{} hosts of {} disks have {all} disks, and {most} are the limit",
                self.hosts, self.disks
            ));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_parsed_with_defaults() {
        let settings: Settings = "hosts=10000,targets=1000".parse().expect("valid settings");
        assert_eq!((settings.hosts, settings.targets, settings.disks), (10_000, 1_000, 4));
        assert_eq!(settings.text().parse::<Settings>().expect("parsable text"), settings);
        let one: Settings = "targets=1,hosts=3,seed=0".parse().expect("valid settings");
        assert_eq!((one.disks, one.seed), (1, 0), "at most one disk per target");
    }

    #[test]
    fn invalid_settings_are_refused() {
        for (text, word) in [
            ("", "not NAME=NUMBER"),
            ("hosts", "not NAME=NUMBER"),
            ("hosts=10", "targets=NUMBER is missing"),
            ("hosts=0,targets=1", "from 1 to"),
            ("hosts=1000000000,targets=1", "from 1 to"),
            ("hosts=99999999999999999999,targets=1", "from 1 to"),
            ("hosts=-1,targets=1", "from 1 to"),
            ("hosts=1,targets=1,hosts=2", "twice"),
            ("hosts=1,targets=1,hots=2", "\"hots\""),
            ("hosts=1,targets=2,disks=3", "on a different target"),
            ("hosts=20000,targets=16,disks=16", "are the limit"),
            ("hosts=1,targets=1,seed=x", "seed=x"),
            ("hosts=1,targets=1,away=0", "away=0"),
        ] {
            let error = text.parse::<Settings>().expect_err(text).to_string();
            assert!(error.contains(word), "{text}: {error}");
        }
    }
}
