//! A reboot and a shutdown are followed to their end.

use tonic::Status;

use super::*;

#[test]
fn reboot_by_somebody_who_may_not_read_files() {
    let setup = Setup::new(|node| {
        node.sequence("reboot", Action::Start, None);
        node.end_generation();
        node.status(MachineStage::Running, true);
        node.begin_generation();
    });
    setup.node.state().read_refusal = Some(Status::permission_denied("not authorized"));
    let json = setup.run(&["reboot", "-o", "json"]).exits(0).json();
    assert_eq!(json["boot_id_before"], Value::Null);
}

#[test]
fn reboot_is_not_sent_when_it_cannot_be_followed() {
    let setup = Setup::new(|node| become_version(node, "v-sent"));
    setup.node.state().read_refusal = Some(Status::not_found("no file"));
    setup
        .run(&["reboot"])
        .exits(1)
        .tells("cannot read the boot id");
    pause(300);
    assert_eq!(setup.node.state().tag, "v0.1.0", "the action was sent");
}

#[test]
fn shutdown_ends_when_everything_stopped() {
    let setup = Setup::new(|node| {
        node.sequence("shutdown", Action::Start, None);
        node.task("stopAllServices");
        pause(200);
        node.end_generation();
    });
    setup.run(&["shutdown"]).exits(0);
}

#[test]
fn shutdown_ends_when_the_link_goes_after_it_began() {
    let setup = Setup::new(|node| {
        node.sequence("shutdown", Action::Start, None);
        pause(200);
        node.end_generation();
    });
    setup.run(&["shutdown", "--timeout", "20s"]).exits(0);
}
