//! The one disk that may be written.

use anyhow::Context as _;

use crate::config::{self, MachineConfig};
use crate::disk::{DiskFields, DiskKind, DiskSelector, DiskSpec, Takeover};

/// The disk that the config gives to the machine.
pub fn disk(config: &MachineConfig) -> anyhow::Result<DiskSpec> {
    let Some(install) = &config.install else {
        return Ok(DiskSpec {
            disk: None,
            takeover: Takeover::Refuse,
        });
    };
    let selector = match &install.selector {
        config::DiskSelector::Path(path) => DiskSelector::Path(path.as_str().into()),
        config::DiskSelector::Cel(text) => DiskSelector::Expression(
            text.parse()
                .context("the disk selector of the install section")?,
        ),
        config::DiskSelector::Fields(fields) => DiskSelector::Fields(Box::new(translate(fields)?)),
    };
    Ok(DiskSpec {
        disk: Some(selector),
        takeover: if install.wipe {
            Takeover::Wipe
        } else {
            Takeover::Refuse
        },
    })
}

fn translate(fields: &config::DiskFields) -> anyhow::Result<DiskFields> {
    Ok(DiskFields {
        size: fields
            .size
            .map(|size| size_condition(size).parse())
            .transpose()
            .context("the disk's size")?,
        name: fields.name.clone(),
        model: fields.model.clone(),
        serial: fields.serial.clone(),
        modalias: fields.modalias.clone(),
        uuid: fields.uuid.clone(),
        wwid: fields.wwid.clone(),
        kind: fields.kind.map(|kind| match kind {
            config::DiskKind::Hdd => DiskKind::Hdd,
            config::DiskKind::Ssd => DiskKind::Ssd,
            config::DiskKind::Nvme => DiskKind::Nvme,
            config::DiskKind::Sd => DiskKind::Sd,
        }),
        bus_path: fields.bus_path.clone(),
    })
}

fn size_condition(condition: config::SizeCondition) -> String {
    let comparison = match condition.comparison {
        config::Comparison::Equal => "==",
        config::Comparison::Greater => ">",
        config::Comparison::GreaterOrEqual => ">=",
        config::Comparison::Less => "<",
        config::Comparison::LessOrEqual => "<=",
    };
    format!("{comparison} {}B", condition.size.0)
}
