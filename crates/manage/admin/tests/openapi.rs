//! Checks that docs/openapi.json matches the handlers.
#![cfg(unix)]

use serde_json::Value;
use std::path::Path;

#[test]
fn the_openapi_description_is_up_to_date() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../docs/openapi.json");
    let made = farblock_admin::openapi();
    if std::env::var_os("FARBLOCK_WRITE_OPENAPI").is_some() {
        std::fs::write(&path, &made).expect("written");
    }
    let there = std::fs::read_to_string(&path).expect("a file of the repository");
    assert!(
        there == made,
        "out of date: FARBLOCK_WRITE_OPENAPI=1 cargo test -p farblock-admin --test openapi"
    );
    for part in ["/v1/subsystems/{nqn}/namespaces/{nsid}", "merge patch", "\"Namespace\""] {
        assert!(made.contains(part), "{part}");
    }
}

#[test]
fn path_parameters_are_in_the_path_templates() {
    let told: Value = serde_json::from_str(&farblock_admin::openapi()).expect("JSON");
    let mut queried = 0;
    for (path, methods) in told["paths"].as_object().expect("an object") {
        let methods = methods.as_object().expect("an object").values();
        let parameters = methods.filter_map(|method| method["parameters"].as_array()).flatten();
        for parameter in parameters {
            let name = parameter["name"].as_str().expect("a name");
            match parameter["in"].as_str() {
                Some("path") => assert!(path.contains(&format!("{{{name}}}")), "{path}: {name}"),
                Some("query") => {
                    queried += 1;
                    assert_ne!(parameter["required"], true, "{path}: {name}");
                }
                _ => {}
            }
        }
    }
    assert!(queried >= 4, "{queried}");
}
