//! `gen config`: a machine config that holds an authority, new or of a fleet, and a client configuration for its administrator.

use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use instar_client::{Endpoint, Failure, FailureKind};
use instar_pki::client_config::{ClientConfig, Context};
use instar_pki::{CertificateAuthority, Role};
use serde_json::json;

use crate::cli::{GenConfig, Global};
use crate::patch;
use crate::private_file;

use super::gen_secrets::{self, Secrets};

mod documents;

use documents::Wanted;

const MACHINE_FILE: &str = "machine.yaml";
const CLIENT_FILE: &str = "talosconfig";

/// Lifetime of the administrator's certificate: one year.
const CLIENT_LIFETIME: Duration = Duration::from_secs(365 * 24 * 3600);

pub(super) fn run(global: &Global, arguments: &GenConfig) -> Result<(), Failure> {
    let files = make(arguments, SystemTime::now())?;
    let paths = write(&arguments.output_dir, &files, arguments.force)?;
    let [machine, client] = paths.map(|path| path.display().to_string());
    global.output.show(
        || {
            format!(
                "wrote {machine} (machine config, holds the authority's key: keep it secret)\nwrote {client} (client configuration, role {})\nnext: boot a node with the machine config, then: instarctl --talosconfig {client} version",
                Role::Admin
            )
        },
        || json!({ "machine_config": machine, "client_config": client }),
    )
}

/// Content of both files.
struct Files {
    machine: String,
    client: String,
}

fn make(arguments: &GenConfig, now: SystemTime) -> Result<Files, Failure> {
    let usage = |error: Box<dyn std::error::Error + Send + Sync>| {
        Failure::new(
            FailureKind::Usage,
            format!("cannot use the endpoint {:?}", arguments.endpoint),
        )
        .because(error)
    };
    let endpoint = arguments
        .endpoint
        .parse::<Endpoint>()
        .map_err(|error| usage(Box::new(error)))?;
    let failed = |what: &str| Failure::new(FailureKind::Failed, format!("cannot make {what}"));
    let (authority, token) = match &arguments.with_secrets {
        Some(path) => Secrets::read(path)?.of_machines(path)?,
        None => {
            let authority = CertificateAuthority::generate(now)
                .map_err(|error| failed("an authority").because(error))?;
            (authority, gen_secrets::token()?)
        }
    };
    let administrator = authority
        .issue_client(&[Role::Admin], now, CLIENT_LIFETIME)
        .map_err(|error| failed("a client certificate").because(error))?;

    let mut names = vec![endpoint.host().to_owned(), "127.0.0.1".to_owned()];
    names.extend(arguments.additional_sans.iter().cloned());
    let mut seen = std::collections::HashSet::new();
    names.retain(|name| seen.insert(name.clone()));

    let machine = documents::machine_config(&Wanted {
        token,
        ca_certificate: BASE64_STANDARD.encode(authority.certificate_pem()),
        ca_key: BASE64_STANDARD.encode(authority.key_pem()),
        names,
        hostname: arguments.hostname.clone(),
        disk: arguments.install_disk.clone(),
    })
    .map_err(|error| failed("the machine config").because(error))?;
    let machine = patch::apply(&machine, &patch::read_all(&arguments.patches)?)?;
    let context = Context::new(vec![endpoint.to_string()], &authority, &administrator);
    let client = ClientConfig::single(&arguments.name, context)
        .to_yaml()
        .map_err(|error| failed("the client configuration").because(error))?;
    Ok(Files { machine, client })
}

/// Writes both files, or none as far as that can be checked before.
fn write(directory: &Path, files: &Files, force: bool) -> Result<[PathBuf; 2], Failure> {
    let paths = [directory.join(MACHINE_FILE), directory.join(CLIENT_FILE)];
    std::fs::create_dir_all(directory).map_err(|error| {
        Failure::io(
            format!("cannot make the directory {}", directory.display()),
            error,
        )
    })?;
    if !force && let Some(path) = paths.iter().find(|path| path.symlink_metadata().is_ok()) {
        return Err(Failure::new(FailureKind::Refused, format!("{} exists", path.display()))
            .advise("its authority cannot be made again: choose another --output-dir, or replace it with --force"));
    }
    for (path, content) in paths.iter().zip([&files.machine, &files.client]) {
        private_file::replace(path, content)
            .map_err(|error| Failure::io(format!("cannot write {}", path.display()), error))?;
    }
    Ok(paths)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn arguments(directory: &Path) -> GenConfig {
        GenConfig {
            name: "demo".into(),
            endpoint: "127.0.0.1:50001".into(),
            with_secrets: None,
            install_disk: Some("/dev/vda".into()),
            hostname: None,
            additional_sans: vec!["node.example.org".into(), "127.0.0.1".into()],
            patches: Vec::new(),
            output_dir: directory.into(),
            force: false,
        }
    }

    #[test]
    fn client_and_machine_share_the_authority() {
        let directory = tempfile::tempdir().unwrap();
        let files = make(&arguments(directory.path()), SystemTime::now()).unwrap();
        let client = ClientConfig::from_yaml(&files.client).unwrap();
        let context = client.context(None).unwrap();
        assert_eq!(context.endpoints(), ["127.0.0.1:50001"]);
        let ca = BASE64_STANDARD.encode(context.ca_pem().unwrap().unwrap());
        assert!(files.machine.contains(&ca), "{}", files.machine);
        let certificate =
            instar_pki::certificate_from_pem(&context.crt_pem().unwrap().unwrap()).unwrap();
        assert_eq!(
            instar_pki::client_roles(&certificate).unwrap(),
            [Role::Admin]
        );
    }

    #[test]
    fn patches_are_laid_over_the_machine_config() {
        let directory = tempfile::tempdir().unwrap();
        let mut arguments = arguments(directory.path());
        arguments.patches = vec!["machine: {sysctls: {vm.swappiness: \"1\"}}".into()];
        let files = make(&arguments, SystemTime::now()).unwrap();
        assert!(
            files.machine.contains("vm.swappiness: '1'") && files.machine.contains("/dev/vda"),
            "{}",
            files.machine
        );
    }

    #[test]
    fn files_are_private_and_not_overwritten() {
        let directory = tempfile::tempdir().unwrap();
        let arguments = arguments(&directory.path().join("new"));
        let files = make(&arguments, SystemTime::now()).unwrap();
        for path in write(&arguments.output_dir, &files, false).unwrap() {
            assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o600);
            std::fs::set_permissions(&path, PermissionsExt::from_mode(0o644)).unwrap();
        }
        let refused = write(&arguments.output_dir, &files, false).unwrap_err();
        assert_eq!(refused.kind(), FailureKind::Refused);
        for path in write(&arguments.output_dir, &files, true).unwrap() {
            assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o600);
        }
    }

    /// With the secrets that talosctl wrote, all nodes have one authority, and clients of one node reach all.
    #[test]
    fn secrets_make_machines_of_one_fleet() {
        let directory = tempfile::tempdir().unwrap();
        let secrets = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/secrets-1.13.yaml");
        let mut arguments = arguments(directory.path());
        arguments.with_secrets = Some(secrets.into());
        let [first, second] =
            [(); 2].map(|()| make(&arguments, SystemTime::now()).unwrap().machine);
        assert_eq!(first, second);
        let written: serde_json::Value =
            serde_saphyr::from_str(&std::fs::read_to_string(secrets).unwrap()).unwrap();
        let machine = &patch::documents(&first).unwrap()[0]["machine"];
        assert_eq!(machine["ca"], written["certs"]["os"]);
        assert_eq!(machine["token"], written["trustdinfo"]["token"]);
    }
}
