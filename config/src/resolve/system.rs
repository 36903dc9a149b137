//! The machine itself: name, time, kernel settings, files.

use std::collections::{BTreeMap, btree_map::Entry};

use super::{
    super::{
        model::{EtcFile, HostnamePolicy, KernelModule, TimeServer, TimeSync},
        section::Section,
        shape::shorten,
    },
    Documents,
};
use instar_values::{KernelParameter, NotAParameter};

pub(super) fn hostname(documents: &Documents<'_>) -> HostnamePolicy {
    if let Some(document) = documents.one("HostnameConfig") {
        return match (document.text("hostname"), document.text("auto")) {
            // How a patch names a machine whose config says `auto: stable`.
            (Some(_), None | Some("off")) => document
                .parsed("hostname")
                .map_or(HostnamePolicy::Off, HostnamePolicy::Fixed),
            (Some(_), Some(_)) => {
                document.wrong_field(
                    "auto",
                    "`hostname` and `auto` exclude each other; keep one, or write `auto: off` beside `hostname`",
                );
                HostnamePolicy::Off
            }
            (None, Some("off")) => HostnamePolicy::Off,
            (None, Some(_)) => HostnamePolicy::Stable,
            (None, None) => {
                document.wrong("either `hostname` or `auto` belongs here");
                HostnamePolicy::Off
            }
        };
    }
    let network = documents.section("network");
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
    let time = documents.section("time");
    let time = time.as_ref();
    TimeSync {
        enabled: !time.and_then(|time| time.flag("disabled")).unwrap_or(false),
        servers: time.map(servers).unwrap_or_default(),
        boot_timeout: time
            .and_then(|time| time.duration("bootTimeout"))
            .filter(|timeout| !timeout.is_zero()),
    }
}

/// Reads the servers of the large document. Clocks of the machine among them are not served; a warning names them.
fn servers(time: &Section<'_>) -> Vec<TimeServer> {
    let given = time.texts("servers").into_iter();
    let servers = given.filter(|given| !TimeServer::is_clock_device(given.text));
    servers.filter_map(|server| server.parsed()).collect()
}

pub(super) fn sysctls(documents: &Documents<'_>) -> BTreeMap<KernelParameter, String> {
    parameters(
        documents,
        "sysctls",
        "SysctlConfig",
        KernelParameter::sysctl,
    )
}

/// Adds the parameters that a node of Kubernetes cannot do without, where the config does not set them: the machine forwards the packets of
/// pods.
pub(super) fn add_parameters_of_a_node(sysctls: &mut BTreeMap<KernelParameter, String>) {
    if let Ok(forwarding) = KernelParameter::sysctl("net.ipv4.ip_forward") {
        sysctls.entry(forwarding).or_insert_with(|| "1".to_owned());
    }
}

pub(super) fn sysfs(documents: &Documents<'_>) -> BTreeMap<KernelParameter, String> {
    parameters(documents, "sysfs", "SysfsConfig", KernelParameter::sysfs)
}

fn parameters(
    documents: &Documents<'_>,
    field: &str,
    kind: &str,
    parse: fn(&str) -> Result<KernelParameter, NotAParameter>,
) -> BTreeMap<KernelParameter, String> {
    let given = match documents.one(kind) {
        Some(document) => document.named_texts("params"),
        None => documents.named_texts(field),
    };
    let mut parameters = BTreeMap::new();
    for (name, value) in given {
        match parse(name) {
            Err(error) => value.wrong(error),
            Ok(parameter) => match parameters.entry(parameter) {
                Entry::Vacant(entry) => drop(entry.insert(value.text.trim().to_owned())),
                Entry::Occupied(entry) => value.wrong(format_args!(
                    "{} is given twice, in two spellings; keep one",
                    entry.key()
                )),
            },
        }
    }
    parameters
}

pub(super) fn environment(documents: &Documents<'_>) -> BTreeMap<String, String> {
    let given = match documents.one("EnvironmentConfig") {
        Some(document) => document.named_texts("variables"),
        None => documents.named_texts("env"),
    };
    let mut environment = BTreeMap::new();
    for (name, value) in given {
        if name.is_empty() || name.contains(['=', '\0']) || value.text.contains('\0') {
            value.wrong("a variable's name is not empty and holds no `=`, and neither name nor value holds a zero byte");
        } else {
            environment.insert(name.to_owned(), value.text.to_owned());
        }
    }
    environment
}

pub(super) fn kernel_modules(documents: &Documents<'_>) -> Vec<KernelModule> {
    let old = documents.section("kernel");
    let old = old.map(|kernel| kernel.sections("modules"));
    let sections = old.unwrap_or_default().into_iter();
    let sections = sections.map(|(_, section)| section);
    let mut modules: Vec<KernelModule> = Vec::new();
    for section in sections.chain(documents.of("KernelModuleConfig")) {
        let Some(module) = kernel_module(&section) else {
            continue;
        };
        // The kernel treats `-` and `_` in names of modules as the same.
        let spelled = |name: &str| name.replace('-', "_");
        let is_same = |it: &KernelModule| spelled(&it.name) == spelled(&module.name);
        match modules.iter().any(is_same) {
            true => section.wrong_field("name", "this module is given twice; keep one"),
            false => modules.push(module),
        }
    }
    modules
}

fn kernel_module(section: &Section<'_>) -> Option<KernelModule> {
    let name: String = section.required("name")?;
    if name.contains(['/', '\0']) || name.contains(char::is_whitespace) {
        section.wrong_field("name", "this is no name of a kernel module");
        return None;
    }
    let parameters = section.texts("parameters");
    // The kernel gets the parameters as one text, separated by spaces.
    for parameter in &parameters {
        let (name, _) = parameter
            .text
            .split_once('=')
            .unwrap_or((parameter.text, ""));
        let is_name = |letter: char| letter.is_ascii_alphanumeric() || matches!(letter, '_' | '-');
        if name.is_empty()
            || !name.chars().all(is_name)
            || parameter.text.contains(['\0', '"', '\n'])
        {
            parameter.wrong("`parameter=value` belongs here, without quotation marks");
        }
    }
    Some(KernelModule {
        name,
        parameters: parameters
            .iter()
            .map(|parameter| parameter.text.to_owned())
            .collect(),
    })
}

/// Files below /etc that the machine writes or needs itself, and the documents that set their content.
const OWN_ETC_FILES: [(&str, &str); 7] = [
    ("resolv.conf", "ResolverConfig"),
    ("hosts", "StaticHostConfig and HostnameConfig"),
    ("hostname", "HostnameConfig"),
    ("os-release", "the image"),
    ("passwd", "the image"),
    ("group", "the image"),
    ("ssl/certs/ca-certificates.crt", "TrustedRootsConfig"),
];

/// Returns the source of a file below /etc that the machine writes or needs itself; `None` for any other file.
#[must_use]
pub fn source_of_own_file(name: &str) -> Option<&'static str> {
    let mut own = OWN_ETC_FILES.iter();
    own.find_map(|(own, source)| (*own == name).then_some(*source))
}

pub(super) fn etc_files(documents: &Documents<'_>) -> Vec<EtcFile> {
    let mut files: Vec<EtcFile> = Vec::new();
    for section in documents.of("EtcFileConfig") {
        let Some(file) = etc_file(&section) else {
            continue;
        };
        let is_below = |one: &str, other: &str| {
            one.strip_prefix(other)
                .is_some_and(|rest| rest.starts_with('/'))
        };
        let in_the_way = files
            .iter()
            .find(|it| is_below(&it.name, &file.name) || is_below(&file.name, &it.name));
        match in_the_way {
            Some(other) => section.wrong_field(
                "name",
                format_args!(
                    "one of this and `{}` would be a directory",
                    shorten(&other.name)
                ),
            ),
            None => files.push(file),
        }
    }
    files
}

fn etc_file(section: &Section<'_>) -> Option<EtcFile> {
    let name: String = section.required("name")?;
    if name.contains('\0') || name.split('/').any(|part| matches!(part, "" | "." | "..")) {
        section.wrong_field(
            "name",
            "this is a path below /etc, without `.`, `..` and leading or doubled slashes",
        );
        return None;
    }
    if let Some(source) = source_of_own_file(&name) {
        section.wrong_field("name", format_args!("this file comes from {source}"));
        return None;
    }
    Some(EtcFile {
        name,
        mode: match section.text("mode") {
            Some(_) => section.number("mode", 0..=0o7777)?,
            None => 0o644,
        },
        contents: section.raw_text("contents").unwrap_or_default().to_owned(),
    })
}
