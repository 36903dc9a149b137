//! Whether and where to install.

use super::{
    super::{
        model::{AbsolutePath, DiskFields, DiskKind, DiskSelector, InstallSpec},
        section::Section,
    },
    Documents,
};

/// Limit on the length of an expression; longer ones are no selectors.
const MAX_EXPRESSION_BYTES: usize = 1024;

pub(super) fn spec(documents: &Documents<'_>) -> Option<InstallSpec> {
    match documents.one("UnattendedInstallConfig") {
        Some(document) => unattended(&document),
        None => old(&documents.section("install")?),
    }
}

fn unattended(document: &Section<'_>) -> Option<InstallSpec> {
    let provisioning = document.section("provisioning");
    let selector = provisioning
        .as_ref()
        .and_then(|section| section.section("diskSelector"));
    let Some(expression) = selector.as_ref().and_then(|section| section.text("match")) else {
        document.wrong_field(
            "provisioning.diskSelector.match",
            "say which disk to install on, for example `disk.dev_path == \"/dev/vda\"`",
        );
        return None;
    };
    if expression.len() > MAX_EXPRESSION_BYTES {
        document.wrong_field(
            "provisioning.diskSelector.match",
            format_args!("an expression has at most {MAX_EXPRESSION_BYTES} bytes"),
        );
        return None;
    }
    let image = document
        .section("installer")
        .and_then(|installer| installer.parsed("image"));
    Some(InstallSpec {
        selector: DiskSelector::Cel(expression.to_owned()),
        wipe: provisioning
            .and_then(|section| section.flag("wipe"))
            .unwrap_or(true),
        reboot: document.flag("reboot").unwrap_or(image.is_some()),
        image,
    })
}

fn old(install: &Section<'_>) -> Option<InstallSpec> {
    let selector = match (
        install.text("disk"),
        install
            .section("diskSelector")
            .map(|section| fields(&section)),
    ) {
        // As in Talos, a selector takes precedence over a path.
        (_, Some(fields)) if fields != DiskFields::default() => {
            DiskSelector::Fields(Box::new(fields))
        }
        (Some(_), _) => {
            let path: AbsolutePath = install.parsed("disk")?;
            DiskSelector::Path(path.as_str().into())
        }
        (None, _) => {
            install.wrong_field(
                "disk",
                "say which disk to install on, for example `/dev/vda`, here or with `diskSelector`",
            );
            return None;
        }
    };
    Some(InstallSpec {
        selector,
        image: install.parsed("image"),
        wipe: install.flag("wipe").unwrap_or(false),
        reboot: true,
    })
}

fn fields(selector: &Section<'_>) -> DiskFields {
    DiskFields {
        size: selector.parsed("size"),
        name: selector.owned("name"),
        model: selector.owned("model"),
        serial: selector.owned("serial"),
        modalias: selector.owned("modalias"),
        uuid: selector.owned("uuid"),
        wwid: selector.owned("wwid"),
        kind: selector.text("type").and_then(|kind| match kind {
            "hdd" => Some(DiskKind::Hdd),
            "ssd" => Some(DiskKind::Ssd),
            "nvme" => Some(DiskKind::Nvme),
            "sd" => Some(DiskKind::Sd),
            _ => None,
        }),
        bus_path: selector.owned("busPath"),
    }
}
