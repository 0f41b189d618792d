//! The incarnations whose end a restarted process confirms.

use super::*;

fn process(process: u64, predecessors: &[u64], before: Option<&MemberRecord>) -> MemberRecord {
    let config = MemberConfig {
        group: "gold".to_owned(),
        name: "a".to_owned(),
        process,
        addresses: Vec::new(),
        weight: 100,
        program: String::new(),
        predecessors: predecessors.to_vec(),
        timing: Timing::default(),
    };
    own_record(&config, (None, before, 0), 0)
}

fn ended(record: &MemberRecord) -> Vec<u64> {
    let mut view = View::default();
    let seen = crate::Seen { record: record.clone(), revision: 1 };
    view.members.insert("a".to_owned(), seen);
    (0..9).filter(|incarnation| view.has_ended("a", *incarnation)).collect()
}

#[test]
fn a_process_confirms_the_end_of_all_processes_that_used_its_state_folder() {
    let first = process(10, &[], None);
    let second = process(20, &[10], Some(&first));
    assert!(ended(&first).is_empty());
    assert_eq!(ended(&second), [1]);
    assert_eq!(ended(&process(30, &[10, 20], Some(&second))), [1, 2]);
}

#[test]
fn a_process_with_another_state_folder_may_still_run() {
    let first = process(10, &[], None);
    let elsewhere = process(20, &[], Some(&first));
    assert!(ended(&elsewhere).is_empty());
    let third = process(30, &[20], Some(&elsewhere));
    assert_eq!(ended(&third), [2], "the first process may still run");
    assert_eq!(ended(&process(40, &[20, 30], Some(&third))), [2, 3]);
}
