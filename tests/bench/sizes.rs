//! Bytes, and lines of code.

use std::path::Path;

use anyhow::{Context, Result};
use instar_tests::{
    ImageUnderTest, code_lines_below, guest_program, guest_program_file, workspace_root,
};

use crate::table::{Limit, Table};

pub(crate) fn measure(image: &ImageUnderTest, table: &mut Table) -> Result<()> {
    let init = guest_program("init")?.len();
    table.add("init_bytes", init as f64, Limit::AtMost(512.0 * 1024.0));
    let init = code_lines_below(&workspace_root().join("init/src"))?;
    table.add("init_lines_of_code", init as f64, Limit::AtMost(1250.0));
    let protocol = code_lines_below(&workspace_root().join("init/protocol/src"))?;
    table.add("init_protocol_lines", protocol as f64, Limit::None);
    let machined = guest_program("machined")?.len();
    table.add("machined_bytes", machined as f64, Limit::None);
    table.add(
        "code_order_found_percent",
        code_order_found()?,
        Limit::AtLeast(75.0),
    );
    let rootfs = size(&image.rootfs())?;
    table.add("rootfs_bytes", rootfs as f64, Limit::None);
    let kernel = size(&image.kernel())?;
    table.add("kernel_bytes", kernel as f64, Limit::None);
    let initramfs = size(&image.initramfs())?;
    table.add("initramfs_bytes", initramfs as f64, Limit::None);
    table.add(
        "kernel_and_initramfs_bytes",
        (kernel + initramfs) as f64,
        Limit::AtMost(f64::from(40 << 20)).with_goal(Limit::AtMost(18_000_000.0)),
    );
    Ok(())
}

/// Returns how many functions of `machined/code-order` this build of machined has, in percent. If there are few, `make code-order` renews
/// the list.
fn code_order_found() -> Result<f64> {
    let lines = |file: &Path| -> Result<usize> {
        let text = std::fs::read_to_string(file);
        let text = text.with_context(|| format!("cannot read {}", file.display()))?;
        Ok(text.lines().count())
    };
    let found = lines(&guest_program_file("machined.order")?)?;
    let listed = lines(&workspace_root().join("machined/code-order"))?;
    Ok(found as f64 / listed as f64 * 100.0)
}

fn size(file: &Path) -> Result<u64> {
    let metadata =
        std::fs::metadata(file).with_context(|| format!("cannot look at {}", file.display()))?;
    Ok(metadata.len())
}
