//! Tests the output and the errors of the program `farblock-fleet-sim`.

use std::process::{Command, Output};

fn run(arguments: &[&str]) -> Output {
    let program = env!("CARGO_BIN_EXE_farblock-fleet-sim");
    Command::new(program).args(arguments).output().expect("the program starts")
}

fn text(bytes: Vec<u8>) -> String {
    String::from_utf8(bytes).expect("UTF-8")
}

#[test]
fn the_program_prints_a_table_and_draws_a_picture_from_its_json() {
    let folder = tempfile::tempdir().expect("a folder");
    let svg = folder.path().join("scale.svg");
    let fleet = "hosts=6,targets=3,disks=2,seed=5";
    let outcome = run(&[fleet, "--svg", svg.to_str().expect("UTF-8")]);
    assert!(outcome.status.success(), "{outcome:?}");
    let table = text(outcome.stdout);
    assert!(table.lines().all(|line| line.chars().count() <= 80), "{table}");
    for row in ["all hosts start", "1 target dies", "a switch is away", "all targets die"] {
        assert_eq!(table.matches(row).count(), 2, "{row} in {table}");
    }
    let picture = std::fs::read_to_string(&svg).expect("the picture");
    assert!(picture.contains("xmlns") && picture.contains("all targets die"), "{picture}");

    let report = || -> serde_json::Value {
        serde_json::from_slice(&run(&[fleet, "--json"]).stdout).expect("JSON")
    };
    let (first, again) = (report(), report());
    let (first, again) = (&first["fleets"][0], &again["fleets"][0]);
    // One host is behind the switch that fails. Only this host reconnects its two disks.
    assert_eq!(first["scenes"][2]["connections"]["accepted"], 4, "{first}");
    assert_eq!((&first["trace"], &first["settings"]), (&again["trace"], &again["settings"]));
    for (one, other) in first["scenes"].as_array().expect("scenes").iter().zip(0..) {
        for figure in ["name", "hosts", "seconds", "connections", "failed_operations"] {
            assert_eq!(one[figure], again["scenes"][other][figure]);
        }
    }
}

#[test]
fn the_program_refuses_invalid_settings() {
    for (fleet, words) in [
        ("hosts=0,targets=1", ["hosts=0", "from 1 to"]),
        ("hosts=1e9,targets=1", ["hosts=1e9", "from 1 to"]),
        ("hosts=10", ["targets=NUMBER is missing", "hosts=10"]),
        ("hosts=10,targets=2,disks=3", ["on a different target", "disks=3"]),
        ("hosts=10,target=2", ["\"target\"", "targets"]),
    ] {
        let outcome = run(&[fleet]);
        assert_eq!(outcome.status.code(), Some(2), "{fleet}");
        let sentence = text(outcome.stderr);
        assert!(words.iter().all(|word| sentence.contains(word)), "{fleet}: {sentence}");
    }
}
