//! Kinds that describe the running machine.

use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use instar_api::events::stage_in_words;
use instar_api::machine::machine_status_event;

use super::{Item, Kind, Namespace, Record, Sensitivity, Source, Value};
use crate::config_source::Secrets;
use crate::disk::STATE;
use crate::machine::Machine;
use crate::meta::Meta;
use crate::store::{ClockFact, MachineStatus, Problem, Resource as _, ServiceFact};

/// The machine's stage and readiness.
pub(super) const MACHINE_STATUSES: Kind = Kind {
    name: MachineStatus::TYPE,
    singular: "MachineStatus",
    namespace: Namespace::Runtime,
    aliases: &[],
    columns: &[("Stage", "{.stage}"), ("Ready", "{.status.ready}")],
    sensitivity: Sensitivity::Open,
    sources: &[Source::Store(MachineStatus::TYPE)],
    read: |machine| Ok(stored(machine, machine_status)),
};

/// The running versions.
pub(super) const VERSIONS: Kind = Kind {
    name: "Versions.runtime.talos.dev",
    singular: "Version",
    columns: &[("Name", "{.name}"), ("Version", "{.version}")],
    sources: &[],
    read: |machine| {
        Ok(vec![Item::new(
            "version",
            version(&machine.running.version),
        )])
    },
    ..MACHINE_STATUSES
};

/// Services.
pub(super) const SERVICES: Kind = Kind {
    name: ServiceFact::TYPE,
    singular: "Service",
    aliases: &["svc"],
    columns: &[
        ("Running", "{.running}"),
        ("Healthy", "{.healthy}"),
        ("Health Unknown", "{.unknown}"),
    ],
    sources: &[Source::Store(ServiceFact::TYPE)],
    read: |machine| Ok(stored(machine, service)),
    ..MACHINE_STATUSES
};

/// Problems that keep the machine from being ready.
pub(super) const DIAGNOSTICS: Kind = Kind {
    name: Problem::TYPE,
    singular: "Diagnostic",
    columns: &[("Message", "{.message}")],
    sources: &[Source::Store(Problem::TYPE)],
    read: |machine| Ok(stored(machine, problem)),
    ..MACHINE_STATUSES
};

/// The state of the clock.
pub(super) const TIME_STATUSES: Kind = Kind {
    name: ClockFact::TYPE,
    singular: "TimeStatus",
    columns: &[("Synced", "{.synced}")],
    sources: &[Source::Store(ClockFact::TYPE)],
    read: |machine| Ok(stored(machine, clock)),
    ..MACHINE_STATUSES
};

/// The kernel's command line.
pub(super) const KERNEL_COMMAND_LINES: Kind = Kind {
    name: "KernelCmdlines.runtime.talos.dev",
    singular: "KernelCmdline",
    aliases: &["cmdline"],
    columns: &[("Cmdline", "{.cmdline}")],
    sources: &[],
    read: |_| {
        let line = crate::command_line::read()?;
        let line = line.trim_end().to_owned();
        let without_secrets = command_line(&Secrets::Hidden.shown(line.clone()));
        Ok(vec![Item {
            without_secrets: Some(without_secrets.into()),
            ..Item::new("cmdline", command_line(&line))
        }])
    },
    ..MACHINE_STATUSES
};

/// The ids of the generation, and of the kernel's boot under it.
pub(super) const BOOT_IDS: Kind = Kind {
    name: "BootIDs.runtime.talos.dev",
    singular: "BootID",
    columns: &[("Boot ID", "{.bootID}")],
    sources: &[],
    read: |machine| {
        let id = |name: &str, id: String| Item::new(name, Record::default().with("bootID", 1, id));
        Ok(vec![
            id("boot-id", machine.generation.boot_id.to_string()),
            id(
                "kernel-boot-id",
                machine.generation.kernel_boot_id.to_string(),
            ),
        ])
    },
    ..MACHINE_STATUSES
};

/// Values that clients left with the machine (META). They may be tokens.
pub(super) const META_KEYS: Kind = Kind {
    name: "MetaKeys.runtime.talos.dev",
    singular: "MetaKey",
    aliases: &["meta"],
    columns: &[("Value", "{.value}")],
    sensitivity: Sensitivity::Secret,
    sources: &[Source::Unannounced],
    read: |_| {
        let values = Meta::on(Path::new(STATE)).values()?;
        Ok(values.into_iter().map(meta_key).collect())
    },
    ..MACHINE_STATUSES
};

/// Lists all resources of a type in the store.
fn stored<R: crate::store::Resource>(machine: &Machine, spec: impl Fn(R) -> Record) -> Vec<Item> {
    let listed = machine.store.list::<R>().into_iter();
    listed
        .map(|(metadata, fact)| Item::stored(metadata, spec(fact)))
        .collect()
}

fn command_line(line: &str) -> Record {
    Record::default().with("cmdline", 1, line)
}

fn machine_status(status: MachineStatus) -> Record {
    let stage =
        machine_status_event::MachineStage::try_from(status.stage as i32).unwrap_or_default();
    let word = stage_in_words(stage);
    let unmet = status.unmet.into_iter().map(|(name, reason)| {
        Record::default()
            .with("name", 1, name)
            .with("reason", 2, reason)
    });
    let inner = Record::default().with("ready", 1, status.ready).with(
        "unmetConditions",
        2,
        unmet.collect::<Value>(),
    );
    Record::default()
        .with("stage", 1, Value::Word(status.stage as u32, word))
        .with("status", 2, inner)
}

fn version(version: &str) -> Record {
    Record::default()
        .with("version", 1, version)
        .with("name", 2, "Instar")
}

fn service(fact: ServiceFact) -> Record {
    Record::default()
        .with("running", 1, fact.running)
        .with("healthy", 2, fact.healthy)
        .with("unknown", 3, fact.unknown)
}

fn problem(problem: Problem) -> Record {
    Record::default()
        .with("message", 1, problem.reason)
        .with("details", 2, Value::List(Vec::new()))
}

fn clock(fact: ClockFact) -> Record {
    Record::default()
        .with("synced", 1, fact.synced)
        .with("epoch", 2, 0_u64)
        .with("syncDisabled", 3, fact.sync_disabled)
}

/// Builds the item of a value, which is shown in base64 if it is no text.
fn meta_key((key, value): (u8, Vec<u8>)) -> Item {
    let text = String::from_utf8(value).unwrap_or_else(|error| BASE64.encode(error.as_bytes()));
    Item::new(
        format!("{key:#04x}"),
        Record::default().with("value", 1, text),
    )
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use instar_api::definitions::{runtime as wire, v1alpha1};
    use prost::Message as _;

    use super::*;
    use crate::api::resources::Spec;
    use crate::store::MachineStage;

    #[test]
    fn both_encodings_are_those_of_the_contract() {
        let status = Spec::from(machine_status(MachineStatus {
            stage: MachineStage::ShuttingDown,
            ready: false,
            unmet: vec![("services".to_owned(), "web".to_owned())],
        }));
        let decoded = wire::MachineStatusSpec::decode(status.protobuf().as_slice()).unwrap();
        assert_eq!(decoded.stage(), wire::MachineStage::ShuttingDown);
        let inner = decoded.status.unwrap();
        assert_eq!(inner.unmet_conditions[0].reason, "web");
        let yaml: serde_json::Value = serde_saphyr::from_str(&status.yaml()).unwrap();
        assert_eq!(
            yaml,
            serde_json::json!({
                "stage": "shutting down",
                "status": {"ready": false, "unmetConditions": [{"name": "services", "reason": "web"}]},
            })
        );

        let fact = ServiceFact {
            running: true,
            healthy: false,
            unknown: true,
        };
        let spec = Spec::from(service(fact));
        let decoded = v1alpha1::ServiceSpec::decode(spec.protobuf().as_slice()).unwrap();
        assert_eq!(
            (decoded.running, decoded.healthy, decoded.unknown),
            (true, false, true)
        );
        let spec = Spec::from(version("v0.1.0"));
        let decoded = wire::VersionSpec::decode(spec.protobuf().as_slice()).unwrap();
        assert_eq!(
            (decoded.version.as_str(), decoded.name.as_str()),
            ("v0.1.0", "Instar")
        );
        let item = meta_key((10, vec![0xff, 1]));
        assert_eq!(item.id, "0x0a");
        let decoded = wire::MetaKeySpec::decode(item.spec.protobuf().as_slice()).unwrap();
        assert_eq!(decoded.value, "/wE=");
    }
}
