use super::{Arguments, BOOT_DEADLINE, Watchdog};
use std::time::Duration;

#[test]
fn kernel_arguments() {
    let nothing = Arguments::parse("console=ttyS0 quiet\n");
    assert_eq!(nothing.boot_deadline, BOOT_DEADLINE);
    assert!(matches!(nothing.watchdog, Watchdog::Absent));

    let all = Arguments::parse(
        "a instar.watchdog=off instar.boot-deadline=10 instar.boot-deadline=20 b=c\n",
    );
    assert_eq!(all.boot_deadline, Duration::from_secs(20));
    assert!(matches!(all.watchdog, Watchdog::Off));
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
        let arguments = Arguments::parse(line);
        assert_eq!(arguments.boot_deadline, BOOT_DEADLINE, "{line}");
        assert!(matches!(arguments.watchdog, Watchdog::Absent), "{line}");
    }
}
