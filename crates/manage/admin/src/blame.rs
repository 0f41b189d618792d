//! Finds the invalid field in a document. The parser does not name a field below a key that is a
//! number, such as the ID of a namespace. So this module removes one field after another until the
//! problem disappears.

use farblock_state::{Document, Problem, pointer};
use serde_json::Value;

/// The maximum number of fields of one object to examine.
const FIELDS_MAX: usize = 64;

/// Returns `problem` with the full path of its field. The field is in the changed part at `place`.
pub(crate) fn located(problem: Problem, document: &Value, place: &[&str]) -> Problem {
    if !problem.field.contains(".?") {
        return problem;
    }
    let fails = |document: &Value| {
        let found = Document::parse(&document.to_string());
        found.is_err_and(|found| found.sentence == problem.sentence)
    };
    let mut document = document.clone();
    keep_only(&mut document, place);
    let mut path: Vec<String> = place.iter().map(|&name| name.to_owned()).collect();
    loop {
        let names: Vec<&str> = path.iter().map(String::as_str).collect();
        let part = pointer(&mut document, &names).and_then(|part| part.as_object());
        let fields: Vec<String> = part.into_iter().flatten().map(|(key, _)| key.clone()).collect();
        // Removing the invalid field makes the problem disappear or change.
        let at_fault = fields.into_iter().take(FIELDS_MAX).find(|field| {
            let mut without = document.clone();
            let part = pointer(&mut without, &names).and_then(Value::as_object_mut);
            part.is_some_and(|part| part.remove(field).is_some()) && !fails(&without)
        });
        match at_fault {
            Some(field) => path.push(field),
            None if path.len() == place.len() => return problem,
            None => return Problem::new(path.join("."), problem.sentence),
        }
    }
}

/// Removes all parts except `place`, so that copies of the document are small.
fn keep_only(document: &mut Value, place: &[&str]) {
    let Some((first, rest)) = place.split_first() else { return };
    let Some(members) = document.as_object_mut() else { return };
    members.retain(|name, _| name == first || name == "version");
    members.get_mut(*first).into_iter().for_each(|part| keep_only(part, rest));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_invalid_field_of_a_namespace_is_named() {
        const NQN: &str = "nqn.2026-11.s:a";
        let located = |namespace: &str, place: &[&str]| {
            let text = format!(
                r#"{{"version": 1, "listeners": {{"127.0.0.1:4420": {{}}}}, "subsystems":
                    {{"{NQN}": {{"namespaces": {{"7": {namespace}}}}}}}}}"#
            );
            let value: Value = serde_json::from_str(&text).expect("JSON");
            let problem = Document::parse(&value.to_string()).expect_err("an invalid document");
            super::located(problem, &value, place).field
        };
        let one = ["subsystems", NQN, "namespaces", "7"];
        let field = |name: &str| format!("subsystems.{NQN}.namespaces.7.{name}");
        let float = r#"{"path": "mem:1MiB", "size": 1e3}"#;
        assert_eq!(located(float, &one), field("size"));
        assert_eq!(located(float, &one[..2]), field("size"));
        assert_eq!(located(r#"{"path": 7}"#, &one), field("path"));
        let limits = r#"{"path": "a", "limits": {"read_iops": "x"}}"#;
        assert!(located(limits, &one).starts_with(&field("limits")), "{}", located(limits, &one));
    }
}
