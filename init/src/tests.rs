use super::{BOOT_DEADLINE, Watchdog, arguments};
use std::time::Duration;

#[test]
fn kernel_arguments() {
    let (deadline, watchdog) = arguments("console=ttyS0 quiet\n");
    assert_eq!(deadline, BOOT_DEADLINE);
    assert!(matches!(watchdog, Watchdog::Absent));

    let (deadline, watchdog) =
        arguments("a instar.watchdog=off instar.boot-deadline=10 instar.boot-deadline=20 b=c\n");
    assert_eq!(deadline, Duration::from_secs(20));
    assert!(matches!(watchdog, Watchdog::Off));
}

#[test]
fn senseless_kernel_arguments_do_not_stop_a_boot() {
    for line in [
        "instar.boot-deadline=",
        "instar.boot-deadline=0",
        "instar.boot-deadline=-5",
        "instar.boot-deadline=99999999999999999999",
        "instar.boot-deadline=86401",
        "instar.boot-deadline",
        "instar.watchdog=on",
        "instar.watchdog",
        "",
    ] {
        let (deadline, watchdog) = arguments(line);
        assert_eq!(deadline, BOOT_DEADLINE, "{line}");
        assert!(matches!(watchdog, Watchdog::Absent), "{line}");
    }
}
