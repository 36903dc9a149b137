//! The boot, from reset to an API that answers, compared with the same kernel and the smallest PID 1.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use instar_qemu::{Timing, Vm};
use instar_tests::{BareBoot, ImageUnderTest, Node, Scratch};

use crate::table::{Limit, Table};
use crate::{COMMAND_LINE, MEMORY_MIB, dhcp_pause};

/// Real time for a counted boot.
const PATIENCE: Duration = Duration::from_secs(300);

/// A lease so soon after its link came up was asked for before IPv6's first packet.
const NO_PAUSE: Duration = Duration::from_millis(20);

/// One counted boot, in instructions since reset.
#[derive(Debug, Clone, Copy)]
struct Counted {
    floor: u64,
    machined: u64,
    api_ready: u64,
}

pub(crate) fn measure(scratch: &Scratch, image: &ImageUnderTest, table: &mut Table) -> Result<()> {
    let first = count(&scratch.below("boot-1")?, image)?;
    let second = count(&scratch.below("boot-2")?, image)?;
    table.add("floor_instructions", first.floor as f64, Limit::None);
    table.add("machined_instructions", first.machined as f64, Limit::None);
    table.add(
        "api_ready_instructions",
        first.api_ready as f64,
        Limit::None,
    );
    table.add(
        "machined_over_floor_ratio",
        ratio(first.machined, first.floor),
        Limit::None,
    );
    table.add(
        "api_ready_over_floor_ratio",
        ratio(first.api_ready, first.floor),
        Limit::AtMost(1.9).with_goal(Limit::AtMost(1.25)),
    );
    let spread = [
        (first.floor, second.floor),
        (first.machined, second.machined),
        (first.api_ready, second.api_ready),
    ]
    .map(|(one, other)| 100.0 * one.abs_diff(other) as f64 / one as f64);
    table.add(
        "instructions_spread_percent",
        spread.into_iter().fold(0.0, f64::max),
        Limit::AtMost(1.0),
    );
    Ok(())
}

fn ratio(value: u64, floor: u64) -> f64 {
    value as f64 / floor as f64
}

fn count(scratch: &Scratch, image: &ImageUnderTest) -> Result<Counted> {
    let bare = BareBoot::measure(scratch, &image.kernel(), COMMAND_LINE, MEMORY_MIB)?;
    let node = Node::plan(scratch, image)
        .memory_mib(MEMORY_MIB)
        .spec(|spec| {
            dhcp_pause::recorded(spec.command_line(COMMAND_LINE).timing(Timing::Instructions))
        })
        .start()?;
    let machined = bare.at_kernel_time(stamp(node.vm(), "as generation 1 (boot)")?);
    let api_ready = bare.at_kernel_time(reachable(node.vm())?);
    ensure!(
        bare.instructions < machined && machined < api_ready,
        "{bare:?}, machined at {machined}, API at {api_ready}"
    );
    Ok(Counted {
        floor: bare.instructions,
        machined,
        api_ready,
    })
}

/// Returns the time at which a remote client would get an answer: the node has called its own API over mutual TLS, and
/// has its address, as if DHCP asked at once.
fn reachable(vm: &Vm) -> Result<Duration> {
    let answers = stamp(vm, "machined: the API answers on port")?;
    let leased = stamp(vm, "machined: DHCP lease")?;
    let pause = dhcp_pause::pause(vm)?;
    let up = stamp(vm, "machined: changing the network plan=bring eth0 up")?;
    ensure!(
        !pause.is_zero() || leased < up + NO_PAUSE,
        "no packet shows how long DHCP has waited before it asked"
    );
    let address = leased.saturating_sub(pause);
    Ok(answers.max(address))
}

/// Returns the kernel's time of the first line with a text.
fn stamp(vm: &Vm, text: &str) -> Result<Duration> {
    let line = vm.wait_for_line(text, PATIENCE)?;
    line.kernel_time()
        .with_context(|| format!("no time stamp in {:?}", line.text))
}
