//! The machine itself: name, time, kernel settings, files.

use std::collections::BTreeMap;

use super::{
    super::model::{EtcFile, HostnamePolicy, KernelModule, TimeSync},
    Documents,
};

pub(super) fn hostname(documents: &Documents<'_>) -> HostnamePolicy {
    if let Some(document) = documents.one("HostnameConfig") {
        return match (document.text("hostname"), document.text("auto")) {
            (Some(_), Some(_)) => {
                document.wrong_field("auto", "`hostname` and `auto` exclude each other; keep one");
                HostnamePolicy::Off
            }
            (Some(_), None) => document
                .parsed("hostname")
                .map_or(HostnamePolicy::Off, HostnamePolicy::Fixed),
            (None, Some("off")) => HostnamePolicy::Off,
            (None, Some(_)) => HostnamePolicy::Stable,
            (None, None) => {
                document.wrong("either `hostname` or `auto` belongs here");
                HostnamePolicy::Off
            }
        };
    }
    let network = documents.machine.section("network");
    match network.and_then(|network| network.parsed("hostname")) {
        Some(name) => HostnamePolicy::Fixed(name),
        None => HostnamePolicy::Stable,
    }
}

pub(super) fn time(documents: &Documents<'_>) -> TimeSync {
    if let Some(document) = documents.one("TimeSyncConfig") {
        let ntp = document.section("ntp");
        return TimeSync {
            enabled: document.flag("enabled").unwrap_or(true),
            servers: ntp
                .map(|ntp| ntp.parsed_list("servers"))
                .unwrap_or_default(),
            boot_timeout: document
                .duration("bootTimeout")
                .filter(|timeout| !timeout.is_zero()),
        };
    }
    let time = documents.machine.section("time");
    let time = time.as_ref();
    TimeSync {
        enabled: !time.and_then(|time| time.flag("disabled")).unwrap_or(false),
        servers: time
            .map(|time| time.parsed_list("servers"))
            .unwrap_or_default(),
        boot_timeout: time
            .and_then(|time| time.duration("bootTimeout"))
            .filter(|timeout| !timeout.is_zero()),
    }
}

pub(super) fn parameters(
    documents: &Documents<'_>,
    field: &str,
    kind: &str,
) -> BTreeMap<String, String> {
    match documents.one(kind) {
        Some(document) => document.text_map("params"),
        None => documents.machine.text_map(field),
    }
}

pub(super) fn environment(documents: &Documents<'_>) -> BTreeMap<String, String> {
    match documents.one("EnvironmentConfig") {
        Some(document) => document.text_map("variables"),
        None => documents.machine.text_map("env"),
    }
}

pub(super) fn kernel_modules(documents: &Documents<'_>) -> Vec<KernelModule> {
    let old = documents
        .machine
        .section("kernel")
        .map(|kernel| kernel.sections("modules"))
        .unwrap_or_default();
    old.into_iter()
        .map(|(_, section)| section)
        .chain(documents.of("KernelModuleConfig"))
        .filter_map(|module| {
            Some(KernelModule {
                name: module.required("name")?,
                parameters: module.list("parameters").unwrap_or_default(),
            })
        })
        .collect()
}

pub(super) fn etc_files(documents: &Documents<'_>) -> Vec<EtcFile> {
    documents
        .of("EtcFileConfig")
        .filter_map(|file| {
            let name: String = file.required("name")?;
            if name.split('/').any(|part| matches!(part, "" | "." | "..")) {
                file.wrong_field(
                    "name",
                    "this is a path below /etc, without `.`, `..` and leading or doubled slashes",
                );
                return None;
            }
            Some(EtcFile {
                name,
                mode: if file.text("mode").is_some() {
                    file.number("mode", 0..=0o7777)?
                } else {
                    0o644
                },
                contents: file.raw_text("contents").unwrap_or_default().to_owned(),
            })
        })
        .collect()
}
