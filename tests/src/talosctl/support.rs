//! `support`: all that can be asked, in one bundle, which is always written; failed parts are listed.

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
        let element = async |method: &'static str, asked: Fields, screen: &mut Screen| {
            let said = one.session.element(method, asked).await;
            add(method, said.map_err(Stop::from), screen)
        };
        let bytes = async |name: &str, method, asked: Fields, screen: &mut Screen| {
            let said = one.session.bytes(method, asked).await;
            add(name, said.map_err(Stop::from), screen)
        };
        let containers = Fields::none().text(1, "system");
        element("/machine.MachineService/Containers", containers, screen).await?;
        let list = "/machine.MachineService/ServiceList";
        let services = element(list, Fields::none(), screen).await?;
        let dmesg = "/machine.MachineService/Dmesg";
        bytes("dmesg", dmesg, Fields::none(), screen).await?;
        for service in services.unwrap_or_default().messages_of(2) {
            let id = service.text_of(1);
            let asked = Fields::none().text(1, "system").text(2, &id).number(5, -1);
            let logs = "/machine.MachineService/Logs";
            bytes(&format!("{id}.log"), logs, asked, screen).await?;
        }
        let dependencies = "/inspect.InspectService/ControllerRuntimeDependencies";
        element(dependencies, Fields::none(), screen).await?;
        element("/machine.MachineService/Mounts", Fields::none(), screen).await?;
        let devices = Fields::none().text(1, "/proc/bus/pci/devices");
        bytes("devices", "/machine.MachineService/Read", devices, screen).await?;
        for method in [
            "/machine.MachineService/DiskStats",
            "/machine.MachineService/Processes",
            "/machine.MachineService/Version",
        ] {
            element(method, Fields::none(), screen).await?;
        }
        match (self.session.release, kubernetes) {
            (Release::V1_14, Err(stop)) => Err(stop),
            _ => Ok(()),
        }
    }
}

/// Puts a part into the bundle, or why it failed.
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
