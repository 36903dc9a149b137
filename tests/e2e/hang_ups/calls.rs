//! The calls that callers hang up on.

use std::time::Duration;

use instar_api::machine as wire;
use instar_api::machine::apply_configuration_request::Mode;
use instar_api::storage::{BlockDeviceWipeDescriptor, BlockDeviceWipeRequest};
use instar_tests::GREETER;
use prost::Message;

use super::seen::Seen;
use super::walk::{Walk, config};

/// A call.
pub(super) struct Call {
    pub(super) method: &'static str,
    pub(super) message: Vec<u8>,
    /// The caller hangs up within this time.
    pub(super) within: Duration,
    /// Whether the call takes the machine down.
    pub(super) reboots: bool,
    pub(super) after: Seen,
}

pub(super) const fn millis(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

impl Walk {
    fn call(&self, method: &'static str, message: &impl Message, within: Duration) -> Call {
        Call {
            method,
            message: message.encode_to_vec(),
            within,
            reboots: false,
            after: self.seen.clone(),
        }
    }

    /// Chooses a call that takes a moment or a few seconds and leaves the machine up.
    pub(super) fn small_call(&mut self) -> Call {
        match self.random.u8(0..13) {
            0 | 1 => self.meta_write(),
            2 => self.meta_delete(),
            3 => self.greeter_stop(),
            4 | 5 => self.greeter_start(),
            6 => self.greeter_restart(),
            7 => self.container_restart(),
            8 | 9 => self.config_in_force(),
            10 => self.try_config(),
            11 => self.image_pull(),
            _ => self.image_remove(),
        }
    }

    fn try_config(&mut self) -> Call {
        let name = self.either_name();
        self.apply(name, Mode::Try, 3000)
    }

    fn meta_write(&mut self) -> Call {
        let value = format!("value-{}", self.random.u16(..));
        let request = wire::MetaWriteRequest {
            key: 10,
            value: value.clone().into_bytes(),
        };
        let mut call = self.call("machine.MachineService/MetaWrite", &request, millis(150));
        call.after.meta = Some(value);
        call
    }

    fn meta_delete(&self) -> Call {
        let request = wire::MetaDeleteRequest { key: 10 };
        let mut call = self.call("machine.MachineService/MetaDelete", &request, millis(150));
        call.after.meta = None;
        call
    }

    fn greeter_stop(&self) -> Call {
        let id = GREETER.to_owned();
        let request = wire::ServiceStopRequest { id };
        self.greeter_ends_up(false, "machine.MachineService/ServiceStop", &request, 1000)
    }

    fn greeter_start(&self) -> Call {
        let id = GREETER.to_owned();
        let request = wire::ServiceStartRequest { id };
        self.greeter_ends_up(true, "machine.MachineService/ServiceStart", &request, 100)
    }

    fn greeter_restart(&self) -> Call {
        let id = GREETER.to_owned();
        let request = wire::ServiceRestartRequest { id };
        self.greeter_ends_up(
            true,
            "machine.MachineService/ServiceRestart",
            &request,
            1500,
        )
    }

    fn container_restart(&self) -> Call {
        let request = wire::RestartRequest {
            namespace: "system".to_owned(),
            id: GREETER.to_owned(),
            ..Default::default()
        };
        self.greeter_ends_up(true, "machine.MachineService/Restart", &request, 1500)
    }

    fn greeter_ends_up(
        &self,
        up: bool,
        method: &'static str,
        request: &impl Message,
        within: u64,
    ) -> Call {
        let mut call = self.call(method, request, millis(within));
        call.after.services.insert(GREETER.to_owned(), up);
        call
    }

    fn config_in_force(&mut self) -> Call {
        let name = self.either_name();
        let mut call = self.apply(name, Mode::NoReboot, 3000);
        call.after = call.after.with_config(name);
        call
    }

    fn either_name(&mut self) -> &'static str {
        ["walk-a", "walk-b"][usize::from(self.random.bool())]
    }

    /// Chooses one of two services for the pull.
    fn image_pull(&mut self) -> Call {
        let mut call = match self.random.bool() {
            true => self.image_pull_by_the_machine_service(),
            false => self.image_pull_by_the_image_service(),
        };
        call.after.images.insert(self.pulled());
        call
    }

    fn image_pull_by_the_machine_service(&self) -> Call {
        let request = wire::ImagePullRequest {
            reference: self.pulled(),
            ..Default::default()
        };
        self.call("machine.MachineService/ImagePull", &request, millis(600))
    }

    fn image_pull_by_the_image_service(&self) -> Call {
        let request = wire::ImageServicePullRequest {
            image_ref: self.pulled(),
            ..Default::default()
        };
        self.call("machine.ImageService/Pull", &request, millis(600))
    }

    fn image_remove(&self) -> Call {
        let image = self.pulled();
        let request = wire::ImageServiceRemoveRequest {
            image_ref: image.clone(),
            ..Default::default()
        };
        let mut call = self.call("machine.ImageService/Remove", &request, millis(150));
        call.after.images.remove(&image);
        call
    }

    pub(super) fn apply(&self, name: &str, mode: Mode, within: u64) -> Call {
        let host = self.registry.host_for_guest();
        let two_seconds = prost_types::Duration {
            seconds: 2,
            nanos: 0,
        };
        let request = wire::ApplyConfigurationRequest {
            data: config(self.node.identity(), &host, name).into_bytes(),
            mode: mode.into(),
            try_mode_timeout: Some(two_seconds),
            ..Default::default()
        };
        let method = "machine.MachineService/ApplyConfiguration";
        self.call(method, &request, millis(within))
    }

    /// Returns the version that does not run.
    pub(super) fn other_version(&self) -> &'static str {
        match self.seen.version.as_str() {
            "v0.1.0" => "v0.2.0",
            _ => "v0.1.0",
        }
    }

    pub(super) fn upgrade(&self, stage: bool, within: u64) -> Call {
        let request = wire::UpgradeRequest {
            image: self.registry.installer_for_guest(self.other_version()),
            stage,
            preserve: true,
            ..Default::default()
        };
        let mut call = self.call("machine.MachineService/Upgrade", &request, millis(within));
        if !stage {
            call.after.version = self.other_version().to_owned();
        }
        call
    }

    pub(super) fn lifecycle_upgrade(&self) -> Call {
        let image_name = self.registry.installer_for_guest(self.other_version());
        let request = wire::LifecycleServiceUpgradeRequest {
            source: Some(wire::InstallArtifactsSource { image_name }),
            ..Default::default()
        };
        let method = "machine.LifecycleService/Upgrade";
        self.call(method, &request, millis(4000))
    }

    pub(super) fn lifecycle_install(&self) -> Call {
        let request = wire::LifecycleServiceInstallRequest::default();
        let method = "machine.LifecycleService/Install";
        self.call(method, &request, millis(100))
    }

    pub(super) fn wipe_of_the_spare_disk(&self) -> Call {
        let disk = BlockDeviceWipeDescriptor {
            device: "vdb".to_owned(),
            ..Default::default()
        };
        let request = BlockDeviceWipeRequest {
            devices: vec![disk],
        };
        let method = "storage.StorageService/BlockDeviceWipe";
        self.call(method, &request, millis(200))
    }

    pub(super) fn reboot(&self) -> Call {
        let mode = wire::reboot_request::Mode::Default.into();
        let request = wire::RebootRequest { mode };
        let call = self.call("machine.MachineService/Reboot", &request, millis(100));
        Call {
            reboots: true,
            ..call
        }
    }

    pub(super) fn rollback(&self) -> Call {
        let request = wire::RollbackRequest::default();
        let mut call = self.call("machine.MachineService/Rollback", &request, millis(500));
        call.reboots = true;
        call.after.version = self.other_version().to_owned();
        call
    }

    /// Wipes EPHEMERAL, with the images that no container needs.
    pub(super) fn reset_of_ephemeral(&self) -> Call {
        let ephemeral = wire::ResetPartitionSpec {
            label: "EPHEMERAL".to_owned(),
            wipe: true,
        };
        let request = wire::ResetRequest {
            graceful: true,
            reboot: true,
            system_partitions_to_wipe: vec![ephemeral],
            ..Default::default()
        };
        let call = self.call("machine.MachineService/Reset", &request, millis(100));
        self.leaves_the_greeters_image_alone(call)
    }

    fn leaves_the_greeters_image_alone(&self, mut call: Call) -> Call {
        let greeter = self.registry.image_for_guest("greeter:v1");
        call.reboots = true;
        call.after.images.retain(|image| *image == greeter);
        call
    }

    pub(super) fn shutdown(&self) -> Call {
        let request = wire::ShutdownRequest::default();
        self.call("machine.MachineService/Shutdown", &request, millis(100))
    }
}
