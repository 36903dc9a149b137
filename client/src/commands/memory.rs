//! `memory`: the use of the node's memory.

use instar_api::machine::MemInfo;
use instar_client::Failure;
use serde_json::{Value, json};

use crate::cli::Global;
use crate::each_node::each_node;
use crate::output::{human, table};

pub(super) async fn run(global: &Global, verbose: bool) -> Result<(), Failure> {
    each_node(global, async |node| {
        let reply = node.machine().memory(node.request(())).await;
        let reply = reply.map_err(|status| node.explain("cannot ask for memory", status))?;
        let info = node.only(reply.into_inner().messages)?.meminfo;
        let info = info.unwrap_or_default();
        let figures = figures(&info);
        global.output.show(
            || {
                if verbose {
                    let row = |(name, kib): &(&str, u64)| vec![(*name).to_owned(), kib.to_string()];
                    return table(
                        &["FIGURE", "KIB"],
                        &figures.iter().map(row).collect::<Vec<_>>(),
                    );
                }
                let size = |kib: u64| human(kib.saturating_mul(1024));
                let used = info.memtotal.saturating_sub(info.memavailable);
                table(
                    &[
                        "NODE", "TOTAL", "USED", "FREE", "SHARED", "BUFFERS", "CACHE", "AVAILABLE",
                    ],
                    &[vec![
                        node.name().to_owned(),
                        size(info.memtotal),
                        size(used),
                        size(info.memfree),
                        size(info.shmem),
                        size(info.buffers),
                        size(info.cached),
                        size(info.memavailable),
                    ]],
                )
            },
            || {
                let figures = figures.iter().map(|(name, kib)| ((*name).to_owned(), json!(kib)));
                json!({ "node": node.name(), "kib": figures.collect::<serde_json::Map<String, Value>>() })
            },
        )?;
        Ok(())
    })
    .await
}

/// The kernel's names, as in /proc/meminfo but in lower case.
fn figures(info: &MemInfo) -> Vec<(&'static str, u64)> {
    macro_rules! figures {
        ($($name:ident)*) => { vec![$((stringify!($name), info.$name)),*] };
    }
    figures![
        memtotal memfree memavailable buffers cached swapcached active inactive activeanon inactiveanon activefile
        inactivefile unevictable mlocked swaptotal swapfree dirty writeback anonpages mapped shmem slab sreclaimable
        sunreclaim kernelstack pagetables nfsunstable bounce writebacktmp commitlimit committedas vmalloctotal vmallocused
        vmallocchunk hardwarecorrupted anonhugepages shmemhugepages shmempmdmapped cmatotal cmafree hugepagestotal
        hugepagesfree hugepagesrsvd hugepagessurp hugepagesize directmap4k directmap2m directmap1g
    ]
}
