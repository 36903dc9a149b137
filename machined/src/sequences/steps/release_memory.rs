//! Frees memory that only the boot needed, in steps: the files that it read, before services start; its code, when it has ended, and once
//! more after the work that follows a boot. A machine of 256 MiB has better uses for both.

use std::fs::File;
use std::sync::Arc;
use std::time::Duration;

use crate::base::blocking_io::{self, ANSWER};
use crate::machine::Machine;
use crate::sys::{rcu, text};

/// Pause after the boot for its last steps: addresses of IPv6, and the certificate that names them.
const SETTLED: Duration = Duration::from_secs(3);
/// Pause after that for work that follows every boot once, such as the first collection of images.
const FIRST_WORK: Duration = Duration::from_secs(8);
/// Time for apid to release its code. Pages that it still has mapped would stay in the page cache.
const APID: Duration = Duration::from_millis(200);

/// Drops page cache, directory entries and inodes (proc_sys_vm(5), `drop_caches`): only those that are clean and not in use.
const PAGES_AND_NAMES: &str = "3";
/// Drops directory entries and inodes without pages.
const NAMES: &str = "2";
/// Drops nothing: the kernel does not log later drops. Cannot be combined with another value in one write.
const QUIETLY: &str = "4";

/// Drops the pages of the root filesystem and the directory entries that the boot has read. Only if there are no containers, whose files
/// must stay in the cache.
pub(in crate::sequences) async fn before_services(machine: Arc<Machine>) -> anyhow::Result<()> {
    if machine.generation.keeps_workloads {
        return Ok(());
    }
    drop_caches(&[QUIETLY, PAGES_AND_NAMES]).await;
    Ok(())
}

/// Ends the hurry of the boot. Releases the code that only the boot needed, in apid and here, and the names that its end has looked up. Files of containers keep their
/// pages.
pub(in crate::sequences) async fn after_boot(machine: Arc<Machine>) {
    tokio::time::sleep(SETTLED).await;
    machine.settle();
    rcu::take_time();
    tokio::time::sleep(APID).await;
    forget_code().await;
    tokio::time::sleep(FIRST_WORK).await;
    forget_code().await;
}

async fn forget_code() {
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
