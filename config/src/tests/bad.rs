//! Bad configs, each with the exact text of its errors: files `bad/*.yaml` beside `bad/*.errors`.

use super::{super::*, assert_golden, data, machine};

/// Reads a file. One without a machine document gets one at its end, so that line numbers stay the same.
fn read(name: &str) -> String {
    let text = std::fs::read_to_string(data(&format!("bad/{name}.yaml"))).unwrap();
    if text.contains("version: v1alpha1\n#")
        || text.contains("\nversion:")
        || text.starts_with("version:")
    {
        return text;
    }
    format!("{text}---\n{}", machine())
}

#[test]
fn bad_configs_say_what_and_where() {
    let mut names: Vec<String> = std::fs::read_dir(data("bad"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter_map(|name| name.strip_suffix(".yaml").map(str::to_owned))
        .collect();
    names.sort();
    assert!(names.len() >= 10, "{names:?}");
    for name in names {
        let errors = match parse(read(&name).as_bytes()) {
            Ok(parsed) => panic!("{name} loads: {parsed:?}"),
            Err(errors) => errors,
        };
        assert_golden(&format!("bad/{name}.errors"), &format!("{errors}\n"));
    }
}

#[test]
fn a_config_without_its_machine_document_is_none() {
    for text in [
        "",
        "---\n---\n",
        "# nothing\n",
        "apiVersion: v1alpha1\nkind: HostnameConfig\nauto: off\n",
    ] {
        assert_eq!(
            parse(text.as_bytes()).unwrap_err().to_string(),
            "there is no document `version: v1alpha1` with `machine.type` and `machine.ca`; every machine config needs one",
            "{text}"
        );
    }
}

#[test]
fn text_that_is_none() {
    assert_eq!(
        parse(b"version: v1alpha1\nmachine:\n  token: \xff\xfe\n")
            .unwrap_err()
            .to_string(),
        "line 3, column 10: the config is not UTF-8 text"
    );
}
