//! The outage of the API over a soft upgrade, and over a reboot of the same machine.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use instar_api::machine::RebootRequest;
use instar_qemu::{ConsoleMark, Timing};
use instar_tests::{BareBoot, ImageUnderTest, Node, OutageProbe, Registry, Scratch};

use crate::table::{Goal, Limit, Table};
use crate::{COMMAND_LINE, MEMORY_MIB};

const PATIENCE: Duration = Duration::from_secs(240);

pub(crate) async fn measure(
    scratch: &Scratch,
    image: &ImageUnderTest,
    table: &mut Table,
) -> Result<()> {
    let scratch = scratch.below("outage")?;
    let bare = BareBoot::measure(&scratch, &image.kernel(), COMMAND_LINE, MEMORY_MIB)?;
    let registry = Registry::start(&scratch)?;
    let next = ImageUnderTest::second()?;
    registry.push_layout(&next.installer(), "instar/installer", next.version())?;
    let host = registry.host_for_guest();
    let node = Node::plan(&scratch, image)
        .memory_mib(384)
        .spec(|spec| {
            spec.command_line(COMMAND_LINE)
                .timing(Timing::InstructionsIdleOnHost)
        })
        .configure(move |config| config.registry(&host))
        .boot()
        .await?;
    let node = Arc::new(node);
    node.wait_until_ready(PATIENCE).await?;

    let mut probe = probe(&node);
    probe.warm().await?;
    let name = format!("instar/installer:{}", next.version());
    node.upgrade(&registry.image_for_guest(&name)).await??;
    let outage = probe.outage(PATIENCE).await?;
    let soft = outage.length;
    table.add(
        "soft_outage_ms",
        milliseconds(soft),
        Limit::AtMost(150.0).with_goal(Limit::AtMost(100.0)),
    );
    table.add(
        "soft_failed_calls",
        f64::from(outage.failures),
        Goal(Limit::AtMost(0.0)),
    );

    node.wait_until_ready(PATIENCE).await?;
    let reboot = reboot(&node, &bare).await?;
    table.add("reboot_outage_ms", milliseconds(reboot), Limit::None);
    table.add(
        "soft_over_reboot_ratio",
        soft.as_secs_f64() / reboot.as_secs_f64(),
        Limit::AtMost(0.1),
    );
    Ok(())
}

fn milliseconds(time: Duration) -> f64 {
    (time.as_secs_f64() * 10_000.0).round() / 10.0
}

fn probe(node: &Arc<Node>) -> OutageProbe {
    let (asked, clock) = (node.clone(), node.clone());
    OutageProbe::start(
        move || {
            let node = asked.clone();
            async move { Ok(node.version_for_newcomers().await?.tag) }
        },
        move || Ok(clock.vm().guest_clock()?),
    )
}

/// Returns the time from the last answer before a reboot to the moment at which a client would get the next one.
///
/// The guest's clock restarts with the reset, so the two halves are measured apart: up to the kernel's last line, and
/// from the reset on. The first half begins with the answer to the call, the last that the machine gave for sure.
async fn reboot(node: &Node, bare: &BareBoot) -> Result<Duration> {
    let mark = node.vm().console_mark()?;
    node.machine()
        .await?
        .reboot(RebootRequest::default())
        .await?;
    let asked = node.vm().guest_clock()?;
    let last = stamp_after(node, mark, "reboot: Restarting system")?;
    let down = Duration::from_nanos(bare.at_kernel_time(last.time)).saturating_sub(asked);
    let answers = stamp_after(node, last.end, "machined: the API answers on port")?;
    let address = stamp_after(node, last.end, "machined: DHCP lease")?;
    let up = Duration::from_nanos(bare.at_kernel_time(answers.time.max(address.time)));
    ensure!(!up.is_zero() && !down.is_zero(), "down {down:?}, up {up:?}");
    Ok(down + up)
}

/// A line of the console, with the kernel's time of it.
struct Stamp {
    time: Duration,
    end: ConsoleMark,
}

fn stamp_after(node: &Node, mark: ConsoleMark, text: &str) -> Result<Stamp> {
    let line = node.vm().wait_for_line_after(mark, text, PATIENCE)?;
    Ok(Stamp {
        time: line
            .kernel_time()
            .with_context(|| format!("no time stamp in {:?}", line.text))?,
        end: line.end,
    })
}
