//! Changes of a part of a document, by its address.

use serde_json::Value;

/// The place of the thing that these names lead to, from the top; `None` if it is not there.
pub fn pointer<'a>(document: &'a mut Value, names: &[&str]) -> Option<&'a mut Value> {
    names.iter().try_fold(document, |value, name| value.get_mut(*name))
}

/// Changes what is at `target` as a JSON merge patch says (RFC 7396).
pub fn patch(target: &mut Value, patch_with: &Value) {
    let Value::Object(changes) = patch_with else {
        target.clone_from(patch_with);
        return;
    };
    if !target.is_object() {
        *target = Value::Object(serde_json::Map::new());
    }
    let fields = target.as_object_mut().expect("made one above");
    for (name, change) in changes {
        if change.is_null() {
            fields.remove(name);
        } else {
            patch(fields.entry(name.clone()).or_insert(Value::Null), change);
        }
    }
}
