//! `validate`: checks a machine config with the code that a node reads it with. It needs no node.

use std::io::{self, Read as _};
use std::path::Path;

use instar_client::{Failure, FailureKind};
use instar_config::{MAX_CONFIG_BYTES, MachineConfig, Parsed, Secret};
use instar_pki::CertificateAuthority;
use serde_json::json;

use crate::cli::{Global, MachineMode, Validate};

pub(super) fn run(global: &Global, arguments: &Validate) -> Result<(), Failure> {
    if arguments.mode == Some(MachineMode::Container) {
        return Err(Failure::new(
            FailureKind::Usage,
            "no node is a container: Instar starts from its own kernel",
        )
        .advise("check the config with --mode metal or --mode cloud"));
    }
    let (name, text) = read(&arguments.config)?;
    let warnings = check(&text, arguments.mode).map_err(|problems| invalid(&name, &problems))?;
    if arguments.strict && !warnings.is_empty() {
        return Err(invalid(&name, &warnings));
    }
    global.output.show(
        || {
            let warnings = warnings
                .iter()
                .map(|warning| format!("warning: {warning}\n"));
            format!("{}{name} is valid", warnings.collect::<String>())
        },
        || json!({ "config": name, "valid": true, "warnings": warnings }),
    )
}

/// Reads a file: its name for messages, and its content, up to one byte more than the limit of a config.
fn read(path: &Path) -> Result<(String, Vec<u8>), Failure> {
    let (name, opened): (String, io::Result<Box<dyn io::Read>>) = match path.to_str() {
        Some("-") => ("standard input".to_owned(), Ok(Box::new(io::stdin()))),
        _ => {
            let file = std::fs::File::open(path);
            (
                path.display().to_string(),
                file.map(|file| Box::new(file) as _),
            )
        }
    };
    let mut text = Vec::new();
    opened
        .and_then(|file| {
            file.take(MAX_CONFIG_BYTES as u64 + 1)
                .read_to_end(&mut text)
        })
        .map_err(|error| Failure::io(format!("cannot read {name}"), error))?;
    Ok((name, text))
}

/// Returns the warnings about a valid config, or all errors of an invalid one.
fn check(text: &[u8], mode: Option<MachineMode>) -> Result<Vec<String>, Vec<String>> {
    let Parsed { config, warnings } = instar_config::parse(text).map_err(|errors| {
        errors
            .problems()
            .iter()
            .map(ToString::to_string)
            .collect::<Vec<_>>()
    })?;
    check_authority(&config).map_err(|problem| vec![problem])?;
    let mut warnings: Vec<String> = warnings.iter().map(ToString::to_string).collect();
    if mode == Some(MachineMode::Metal) && config.install.is_none() {
        warnings.push(
            "machine.install: no disk is named, so the machine keeps nothing over a reboot"
                .to_owned(),
        );
    }
    Ok(warnings)
}

/// A node signs its own certificate with the authority's key: with another key it would have none.
fn check_authority(config: &MachineConfig) -> Result<(), String> {
    let Some(key) = config.trust.ca_key.as_ref().map(Secret::expose) else {
        return Ok(());
    };
    CertificateAuthority::from_pem(&config.trust.ca, key)
        .map(drop)
        .map_err(|error| format!("machine.ca: {error}"))
}

fn invalid(name: &str, problems: &[String]) -> Failure {
    Failure::new(
        FailureKind::Failed,
        format!("{name} is not valid:\n{}", problems.join("\n")),
    )
}
