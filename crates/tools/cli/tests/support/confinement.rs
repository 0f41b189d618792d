//! Reads the rights that a process has dropped, as the kernel and the process report them.

use serde_json::Value;
use std::fs;

pub fn threads(process: u64, name: &str) -> Vec<String> {
    let tasks = fs::read_dir(format!("/proc/{process}/task")).expect("the process runs");
    let value = |task: fs::DirEntry| {
        let text = fs::read_to_string(task.path().join("status")).ok()?;
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
        Some(line.trim().to_owned())
    };
    tasks.filter_map(|task| value(task.expect("the entry has the value"))).collect()
}

pub fn children(process: u64) -> Vec<u64> {
    let tasks = fs::read_dir(format!("/proc/{process}/task")).into_iter().flatten().flatten();
    let lists = tasks.filter_map(|task| fs::read_to_string(task.path().join("children")).ok());
    let numbers = |list: String| list.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
    lists.flat_map(numbers).map(|number| number.parse().expect("the text is a number")).collect()
}

/// Whether a process runs. A zombie does not count.
pub fn runs(process: u64) -> bool {
    let status = fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
    let state = status.lines().find_map(|line| line.strip_prefix("State:"));
    state.is_some_and(|state| !state.trim_start().starts_with(['Z', 'X']))
}

/// Returns the seccomp mode of the tests, which their children inherit.
pub fn filter_of_the_tests() -> String {
    threads(std::process::id().into(), "Seccomp").swap_remove(0)
}

/// Checks that every thread has dropped the same rights, and that the process's own report agrees.
#[track_caller]
pub fn is_confined(process: u64, said: &Value) {
    for (name, value) in [("NoNewPrivs", "1"), ("Seccomp", "2"), ("CapInh", "0000000000000000")] {
        let found = threads(process, name);
        assert!(found.len() > 1 && found.iter().all(|it| it == value), "{name}: {found:?}");
    }
    // The bits of CAP_SYS_ADMIN, CAP_SYS_PTRACE and CAP_SYS_MODULE.
    let forbidden = 1 << 21 | 1 << 19 | 1 << 16_u64;
    for mask in threads(process, "CapEff") {
        let held = u64::from_str_radix(&mask, 16).expect("the mask is hexadecimal");
        assert_eq!(held & forbidden, 0, "{mask}");
    }
    for name in ["sandboxed", "no_new_privileges", "system_calls_filtered"] {
        assert_eq!(said[name], true, "{name}: {said}");
    }
    // Under another seccomp filter, such as a container's, the process does not try Landlock, and
    // reports this.
    let is_ours = filter_of_the_tests() == "0";
    assert_eq!(said["runs_no_program"], is_ours, "{said}");
    assert_eq!(said["lacks"] == serde_json::json!([]), is_ours, "{said}");
}
