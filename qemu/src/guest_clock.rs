//! The guest's time, read by the host.
//!
//! QEMU does not report its virtual clock, but it has two devices that count it, and its human monitor reads both
//! without a guest instruction. The ACPI power management timer starts with the machine, has 24 bits and so wraps every
//! 4.7 s; the HPET counts in steps of 10 ns with 64 bits, from when the guest's kernel enables it. Linux does so within
//! the first second, so together they give the time since the start.

use std::time::Duration;

use serde_json::json;

use crate::qmp::{Qmp, QmpError};

/// Reads the HPET's main counter.
const READ_HPET: &str = "xp /1gx 0xfed000f0";
/// The HPET counts at 100 MHz in QEMU.
const HPET_STEP_NS: u64 = 10;

/// Reads the power management timer, where the firmware puts it on q35.
const READ_PM_TIMER: &str = "i /w 0x608";
const PM_TIMER_HZ: u64 = 3_579_545;
const PM_TIMER_RANGE: u64 = 1 << 24;
/// The value of a port before the firmware has put a device there.
const NOTHING_THERE: u64 = 0xffff_ffff;

/// Reads both timers. Pauses the guest for the moment, so that they show the same time.
pub(crate) fn read(qmp: &mut Qmp) -> Result<Duration, QmpError> {
    let status = qmp.execute("query-status", json!({}))?;
    let running = status
        .get("running")
        .and_then(serde_json::Value::as_bool)
        .unwrap_or(false);
    if running {
        qmp.execute("stop", json!({}))?;
    }
    let texts = qmp
        .human(READ_HPET)
        .and_then(|hpet| Ok((hpet, qmp.human(READ_PM_TIMER)?)));
    if running {
        qmp.execute("cont", json!({}))?;
    }
    let (hpet, pm_timer) = texts?;
    let unreadable = |text: &str| QmpError::NotQmp {
        text: text.trim().to_owned(),
    };
    let hpet = number_in(&hpet).ok_or_else(|| unreadable(&hpet))?;
    let pm_timer = number_in(&pm_timer).ok_or_else(|| unreadable(&pm_timer))?;
    Ok(time(hpet, pm_timer))
}

/// Parses the monitor's output: `00000000fed000f0: 0x000000000bebc200`, `portl[0x0608] = 0x00340781`.
fn number_in(text: &str) -> Option<u64> {
    u64::from_str_radix(text.trim().rsplit_once("0x")?.1, 16).ok()
}

/// Returns the time since the start, from both counters at one moment.
fn time(hpet: u64, pm_timer: u64) -> Duration {
    if pm_timer == NOTHING_THERE {
        return Duration::ZERO;
    }
    let nanoseconds_of = |steps: u64| steps * 1_000_000_000 / PM_TIMER_HZ;
    let since_wrap = nanoseconds_of(pm_timer % PM_TIMER_RANGE);
    let since_enabled = hpet.saturating_mul(HPET_STEP_NS);
    if hpet == 0 {
        return Duration::from_nanos(since_wrap);
    }
    let wrap = nanoseconds_of(PM_TIMER_RANGE);
    let enabled_at = (since_wrap + wrap - since_enabled % wrap) % wrap;
    Duration::from_nanos(since_enabled.saturating_add(enabled_at))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    /// Returns both counters at some time, for an HPET that was enabled 0.7 s after the start.
    fn counters(at: Duration) -> (u64, u64) {
        let nanoseconds = u128::from(u64::try_from(at.as_nanos()).unwrap());
        let pm_timer =
            nanoseconds * u128::from(PM_TIMER_HZ) / 1_000_000_000 % u128::from(PM_TIMER_RANGE);
        let hpet = nanoseconds.saturating_sub(700_000_000) / u128::from(HPET_STEP_NS);
        (
            u64::try_from(hpet).unwrap(),
            u64::try_from(pm_timer).unwrap(),
        )
    }

    #[test]
    fn two_counters_give_the_time_since_the_start() {
        for milliseconds in [
            0, 1, 500, 699, 701, 2_000, 4_680, 4_690, 5_400, 60_000, 3_600_000,
        ] {
            let expected = Duration::from_millis(milliseconds);
            let (hpet, pm_timer) = counters(expected);
            let difference = time(hpet, pm_timer).abs_diff(expected);
            assert!(
                difference < Duration::from_micros(5),
                "{milliseconds} ms: off by {difference:?}"
            );
        }
    }

    #[test]
    fn before_the_firmware_there_is_no_time() {
        assert_eq!(time(0, NOTHING_THERE), Duration::ZERO);
    }

    #[test]
    fn reads_what_the_monitor_prints() {
        assert_eq!(
            number_in("00000000fed000f0: 0x000000000bebc200\r\n"),
            Some(200_000_000)
        );
        assert_eq!(
            number_in("portl[0x0608] = 0x00340781\r\n"),
            Some(0x0034_0781)
        );
        assert_eq!(number_in("unknown command: 'xp'"), None);
    }
}
