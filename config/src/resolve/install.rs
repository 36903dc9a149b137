//! Whether and where to install.

use std::str::FromStr;

use super::{
    super::{
        model::{
            ByteSize, Comparison, DiskFields, DiskKind, DiskSelector, InstallSpec, SizeCondition,
        },
        section::Section,
    },
    Documents,
};

/// Longer expressions are no selectors.
const MAX_EXPRESSION_BYTES: usize = 4096;

pub(super) fn spec(documents: &Documents<'_>) -> Option<InstallSpec> {
    match documents.one("UnattendedInstallConfig") {
        Some(document) => unattended(&document),
        None => old(&documents.machine.section("install")?),
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
        // As in Talos, a selector wins over a path.
        (_, Some(fields)) if fields != DiskFields::default() => DiskSelector::Fields(fields),
        (Some(_), _) => DiskSelector::Path(install.parsed("disk")?),
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

impl FromStr for SizeCondition {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let text = text.trim();
        // The longer operators first: `>` begins `>=`.
        let operators = [
            (">=", Comparison::GreaterOrEqual),
            ("<=", Comparison::LessOrEqual),
            ("==", Comparison::Equal),
            (">", Comparison::Greater),
            ("<", Comparison::Less),
        ];
        let (comparison, size) = operators
            .into_iter()
            .find_map(|(operator, comparison)| Some((comparison, text.strip_prefix(operator)?)))
            .unwrap_or((Comparison::Equal, text));
        let size: ByteSize = size
            .parse()
            .map_err(|_| "write a size such as `4GB`, `>= 1TB` or `<= 2TB`")?;
        Ok(Self { comparison, size })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn sizes_compare() {
        for (text, yes, no) in [
            ("4GB", 4_000_000_000, 4_000_000_001),
            (">= 1TB", 1_000_000_000_000, 999_999_999_999),
            ("<=2TiB", 2 << 40, (2 << 40) + 1),
            ("> 1k", 1001, 1000),
            ("< 1k", 999, 1000),
        ] {
            let condition: SizeCondition = text.parse().unwrap();
            assert!(condition.holds(yes), "{text} {yes}");
            assert!(!condition.holds(no), "{text} {no}");
        }
        assert!("=> 1".parse::<SizeCondition>().is_err());
    }
}
