//! What only the boot needed is let go, in two steps: what it read, before there are services; its code, when it has ended.
//! A machine of 256 MiB has better uses for both.

use std::fs::File;
use std::sync::Arc;
use std::time::Duration;

use crate::base::blocking_io::{self, ANSWER};
use crate::machine::Machine;
use crate::sys::text;

/// After the boot, when its last steps have run out: addresses of IPv6, and the certificate that names them.
const SETTLED: Duration = Duration::from_secs(3);
/// By then apid has let go of its code. Pages that it still has mapped would stay in the page cache.
const APID: Duration = Duration::from_millis(200);

/// What the kernel drops when it is told to (proc_sys_vm(5), `drop_caches`): only what is clean and not in use.
const PAGES_AND_NAMES: &str = "3";
/// Directory entries and inodes without pages.
const NAMES: &str = "2";
/// Nothing: it keeps the kernel from logging what is dropped from then on. It cannot be written together with another.
const QUIETLY: &str = "4";

/// Lets go of what the boot has read: pages of the root filesystem, directory entries. Only where there are no containers, whose
/// files must not be hit.
pub(in crate::sequences) async fn before_services(machine: Arc<Machine>) -> anyhow::Result<()> {
    if machine.generation.keeps_workloads {
        return Ok(());
    }
    drop_caches(&[QUIETLY, PAGES_AND_NAMES]).await;
    Ok(())
}

/// Lets go of the code that only the boot needed, in apid and here, and of the names that its end has looked up. Files of
/// containers keep their pages.
pub(in crate::sequences) async fn after_boot(machine: Arc<Machine>) {
    tokio::time::sleep(SETTLED).await;
    machine.settle();
    tokio::time::sleep(APID).await;
    let forgotten = text::forget()
        .and_then(|()| File::open("/proc/self/exe"))
        .and_then(|program| text::uncache(&program));
    if let Err(error) = forgotten {
        tracing::warn!("the code of the boot stays in memory: {error}");
    }
    drop_caches(&[NAMES]).await;
}

async fn drop_caches(what: &'static [&'static str]) {
    let dropped = blocking_io::within(ANSWER, || {
        what.iter()
            .try_for_each(|what| std::fs::write("/proc/sys/vm/drop_caches", what))
    });
    if let Err(error) = dropped
        .await
        .map_err(std::io::Error::other)
        .and_then(|dropped| dropped)
    {
        tracing::warn!("the boot's memory stays in use: /proc/sys/vm/drop_caches: {error}");
    }
}
