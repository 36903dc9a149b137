//! Bytes and lines.

use std::path::Path;

use anyhow::{Context, Result};
use instar_tests::{ImageUnderTest, guest_program, workspace_root};

use crate::table::{Limit, Table};

pub(crate) fn measure(image: &ImageUnderTest, table: &mut Table) -> Result<()> {
    let init = guest_program("init")?.len();
    table.add("init_bytes", init as f64, Limit::AtMost(512.0 * 1024.0));
    let init = lines_below(&workspace_root().join("init/src"))?;
    table.add("init_lines", init.all as f64, Limit::AtMost(1500.0));
    table.add("init_lines_of_code", init.code as f64, Limit::None);
    let protocol = lines_below(&workspace_root().join("init/protocol/src"))?;
    table.add("init_protocol_lines", protocol.code as f64, Limit::None);
    let machined = guest_program("machined")?.len();
    table.add("machined_bytes", machined as f64, Limit::None);
    let rootfs = size(&image.rootfs())?;
    table.add("rootfs_bytes", rootfs as f64, Limit::None);
    let kernel = size(&image.kernel())?;
    table.add("kernel_bytes", kernel as f64, Limit::None);
    let initramfs = size(&image.initramfs())?;
    table.add("initramfs_bytes", initramfs as f64, Limit::None);
    table.add(
        "kernel_and_initramfs_bytes",
        (kernel + initramfs) as f64,
        Limit::AtMost(f64::from(40 << 20)),
    );
    Ok(())
}

fn size(file: &Path) -> Result<u64> {
    let metadata =
        std::fs::metadata(file).with_context(|| format!("cannot look at {}", file.display()))?;
    Ok(metadata.len())
}

/// How long sources are; files of tests are left out.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Lines {
    all: usize,
    /// Without blank lines and comments.
    code: usize,
}

fn lines_below(folder: &Path) -> Result<Lines> {
    let mut lines = Lines::default();
    for entry in
        std::fs::read_dir(folder).with_context(|| format!("cannot list {}", folder.display()))?
    {
        let path = entry?.path();
        if path.is_dir() {
            let below = lines_below(&path)?;
            lines.all += below.all;
            lines.code += below.code;
        } else if path.file_name().is_some_and(|name| name != "tests.rs") {
            let text = std::fs::read_to_string(&path)
                .with_context(|| format!("cannot read {}", path.display()))?;
            let is_code = |line: &&str| !line.trim().is_empty() && !line.trim().starts_with("//");
            lines.all += text.lines().count();
            lines.code += text.lines().filter(is_code).count();
        }
    }
    Ok(lines)
}
