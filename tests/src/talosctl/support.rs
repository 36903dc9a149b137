//! `support`: everything that can be asked, in one bundle, which is always written; what fails is listed.

use super::Talosctl;
use super::screen::{Screen, Step, Stop};
use super::session::Release;
use super::wire::Fields;

impl Talosctl<'_> {
    pub(super) async fn support(&self, screen: &mut Screen) -> Step {
        let one = Self {
            session: self.session.naming_one(),
            ..*self
        };
        let kubernetes = one.kubeconfig().await;
        if let Err(stop) = &kubernetes {
            screen.complain(&format!("kubeconfig: {stop}"));
        }
        let definitions = add("definitions", one.definitions().await, screen)?;
        let definitions = definitions.unwrap_or_default();
        if !definitions.iter().any(|it| it.is_called("ns")) {
            screen.complain("no type is called ns");
        }
        for definition in definitions {
            let listed = one.list_resources(&definition.namespace, &definition.kind);
            add(&definition.kind, listed.await, screen)?;
        }
        let containers = Fields::none().text(1, "system");
        let calls = [
            ("/machine.MachineService/Containers", containers),
            ("/machine.MachineService/Mounts", Fields::none()),
            ("/machine.MachineService/DiskStats", Fields::none()),
            ("/machine.MachineService/Processes", Fields::none()),
            ("/machine.MachineService/Version", Fields::none()),
            (
                "/inspect.InspectService/ControllerRuntimeDependencies",
                Fields::none(),
            ),
        ];
        for (method, asked) in calls {
            let said = one.session.element(method, asked).await;
            add(method, said.map_err(Stop::from), screen)?;
        }
        let services = "/machine.MachineService/ServiceList";
        let services = one.session.element(services, Fields::none()).await;
        let services = add("services", services.map_err(Stop::from), screen)?;
        for service in services.unwrap_or_default().messages_of(2) {
            let id = service.text_of(1);
            let asked = Fields::none().text(1, "system").text(2, &id).number(5, -1);
            let method = "/machine.MachineService/Logs";
            let log = one.session.bytes(method, asked).await;
            add(&format!("{id}.log"), log.map_err(Stop::from), screen)?;
        }
        let method = "/machine.MachineService/Dmesg";
        let dmesg = one.session.bytes(method, Fields::none()).await;
        add("dmesg", dmesg.map_err(Stop::from), screen)?;
        let devices = Fields::none().text(1, "/proc/bus/pci/devices");
        let method = "/machine.MachineService/Read";
        let devices = one.session.bytes(method, devices).await;
        add("devices", devices.map_err(Stop::from), screen)?;
        match (self.session.release, kubernetes) {
            (Release::V1_14, Err(stop)) => Err(stop),
            _ => Ok(()),
        }
    }
}

/// Puts a part into the bundle, or why it could not be had.
fn add<T>(name: &str, had: Step<T>, screen: &mut Screen) -> Step<Option<T>> {
    match had {
        Ok(part) => {
            screen.line(name)?;
            Ok(Some(part))
        }
        Err(stop) => {
            screen.complain(&format!("{name}: {stop}"));
            Ok(None)
        }
    }
}
