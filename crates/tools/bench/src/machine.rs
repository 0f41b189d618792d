//! The facts about the machine and the time in a report.

use std::ffi::OsString;
use std::io;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

/// The machine of a report.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Machine {
    /// The model name of the processor, as the processor reports it.
    pub cpu_model: String,
    /// The number of logical processors that this process may use.
    pub cores: u32,
    /// The size of the main memory in bytes; `None` if the system does not report it.
    pub memory_bytes: Option<u64>,
    /// The name and version of the operating system's kernel.
    pub kernel: String,
    /// The architecture of the processor.
    pub architecture: String,
}

impl Machine {
    /// Describes this machine.
    #[cfg(windows)]
    pub fn this() -> Machine {
        use crate::windows::{cpu_model, memory_bytes, system};
        Machine {
            cpu_model: cpu_model().unwrap_or_else(|| "unknown".to_owned()),
            cores: cores(),
            memory_bytes: memory_bytes(),
            kernel: system().unwrap_or_else(|| "Windows".to_owned()),
            architecture: std::env::consts::ARCH.to_owned(),
        }
    }

    /// Describes this machine.
    #[cfg(not(windows))]
    pub fn this() -> Machine {
        let read = |path| std::fs::read_to_string(path).ok();
        let release = read("/proc/sys/kernel/osrelease");
        let kernel = match (std::env::consts::OS, release) {
            ("linux", Some(release)) => format!("Linux {}", release.trim()),
            (other, _) => other.to_owned(),
        };
        let cpu_model = read("/proc/cpuinfo").as_deref().and_then(parse_cpu_model);
        Machine {
            cpu_model: cpu_model.unwrap_or_else(|| "unknown".to_owned()),
            cores: cores(),
            memory_bytes: read("/proc/meminfo").as_deref().and_then(parse_memory),
            kernel,
            architecture: std::env::consts::ARCH.to_owned(),
        }
    }
}

/// The free space in a folder that this user may use, in bytes.
///
/// # Errors
/// The error of the system, for example if the folder does not exist.
pub fn available_bytes(folder: &Path) -> io::Result<u64> {
    #[cfg(windows)]
    return crate::windows::available_bytes(folder);
    #[cfg(not(windows))]
    {
        let found = rustix::fs::statvfs(folder)?;
        Ok(found.f_bavail.saturating_mul(found.f_frsize))
    }
}

/// The number of logical processors that this process may use, which limits the number of jobs.
pub fn cores() -> u32 {
    let cores = std::thread::available_parallelism().map_or(1, |count| count.get());
    u32::try_from(cores).unwrap_or(u32::MAX)
}

/// The command line of this process, quoted for a shell. The program is named without its folder.
pub fn command_line() -> String {
    joined(std::env::args_os())
}

fn joined(words: impl Iterator<Item = OsString>) -> String {
    let word = |(at, word): (usize, OsString)| {
        let name = Path::new(&word).file_name().filter(|_| at == 0);
        quote(&name.unwrap_or(&word).to_string_lossy())
    };
    words.enumerate().map(word).collect::<Vec<_>>().join(" ")
}

/// Formats a time as in `2026-11-21T05:06:13Z`.
pub fn utc(now: SystemTime) -> String {
    let seconds = now.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let (days, rest) = (seconds / 86_400, seconds % 86_400);
    let (year, month, day) = civil_from_days(days);
    let (hour, minute, second) = (rest / 3600, rest / 60 % 60, rest % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

/// Converts a number of days since 1970 to year, month and day. Uses Howard Hinnant's method, in
/// which years start in March.
fn civil_from_days(days: u64) -> (u64, u64, u64) {
    let shifted = days + 719_468;
    let (era, day_of_era) = (shifted / 146_097, shifted % 146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    (era * 400 + year_of_era + u64::from(month <= 2), month, day)
}

fn quote(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./:=,@%+".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', r"'\''"))
}

#[cfg(any(not(windows), test))]
fn parse_cpu_model(cpuinfo: &str) -> Option<String> {
    let names = ["model name", "Model", "cpu model", "uarch"];
    names.iter().find_map(|name| {
        let line = cpuinfo.lines().find(|line| line.starts_with(name))?;
        let (_, value) = line.split_once(':')?;
        Some(value.split_whitespace().collect::<Vec<_>>().join(" "))
    })
}

#[cfg(any(not(windows), test))]
fn parse_memory(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn dates_are_shown_in_utc() {
        let at = |seconds| utc(UNIX_EPOCH + Duration::from_secs(seconds));
        assert_eq!(at(0), "1970-01-01T00:00:00Z");
        assert_eq!(at(951_782_400), "2000-02-29T00:00:00Z");
        assert_eq!(at(1_709_251_199), "2024-02-29T23:59:59Z");
        assert_eq!(at(1_767_225_599), "2025-12-31T23:59:59Z");
        assert_eq!(at(4_107_542_400), "2100-03-01T00:00:00Z");
    }

    #[test]
    fn words_are_quoted_for_a_shell() {
        assert_eq!(quote("--bs=4k"), "--bs=4k");
        assert_eq!(quote("my disk"), "'my disk'");
        assert_eq!(quote("it's"), r"'it'\''s'");
        assert_eq!(quote(""), "''");
    }

    #[test]
    fn the_shown_command_line_omits_the_path_of_the_program() {
        let words = ["/home/me/bin/farblock", "bench", "/dev/my disk"];
        let line = joined(words.into_iter().map(OsString::from));
        assert_eq!(line, "farblock bench '/dev/my disk'");
    }

    #[test]
    fn proc_files_are_parsed() {
        let cpuinfo = "processor\t: 0\nmodel\t\t: 143\nmodel name\t: Intel(R)  Xeon(R) @ 2.1GHz\n";
        assert_eq!(parse_cpu_model(cpuinfo).as_deref(), Some("Intel(R) Xeon(R) @ 2.1GHz"));
        assert_eq!(parse_cpu_model("BogoMIPS: 2\n"), None);
        assert_eq!(parse_memory("MemTotal:       2048 kB\nMemFree: 1 kB\n"), Some(2 << 20));
    }

    #[test]
    fn the_description_of_this_machine_is_complete() {
        let machine = Machine::this();
        assert!(machine.cores >= 1);
        assert!(!machine.kernel.is_empty());
    }
}
