//! Bytes on the wire that other implementations of this API send and expect. They must never change.
#![allow(clippy::unwrap_used)]

use instar_api::common::{Code, ContainerDriver, Error};
use instar_api::events::{EventPayload, UnpackError, hello};
use instar_api::machine::apply_configuration_request::Mode;
use instar_api::machine::machine_status_event::{MachineStage, MachineStatus};
use instar_api::machine::{
    ApplyConfigurationRequest, Event, EventsRequest, LogsRequest, MachineStatusEvent, MemInfo,
    SequenceEvent, ServiceEvents, ServiceHealth, ServiceInfo, TaskEvent, UpgradeRequest, Version,
    VersionInfo, VersionResponse, task_event, upgrade_request::RebootMode,
};
use prost::Message;
use prost_types::Any;

#[test]
fn upgrade_request_has_its_five_fields() {
    let request = UpgradeRequest {
        image: "r/i:v2".into(),
        preserve: true,
        stage: true,
        force: true,
        reboot_mode: RebootMode::Powercycle.into(),
    };
    assert_eq!(
        request.encode_to_vec(),
        b"\x0a\x06r/i:v2\x10\x01\x18\x01\x20\x01\x28\x01"
    );
}

#[test]
fn apply_configuration_request_skips_two_and_three() {
    let request = ApplyConfigurationRequest {
        data: b"y".to_vec(),
        mode: Mode::Auto.into(),
        dry_run: true,
        try_mode_timeout: Some(prost_types::Duration {
            seconds: 60,
            nanos: 0,
        }),
    };
    // The bytes that other clients send: 1=bytes 4=mode 5=1 6{1=60}.
    assert_eq!(
        request.encode_to_vec(),
        b"\x0a\x01y\x20\x01\x28\x01\x32\x02\x08\x3c"
    );
}

#[test]
fn logs_request_as_observed() {
    let request = LogsRequest {
        namespace: "system".into(),
        id: "apid".into(),
        driver: ContainerDriver::Containerd.into(),
        follow: true,
        tail_lines: -1,
    };
    assert_eq!(
        request.encode_to_vec(),
        b"\x0a\x06system\x12\x04apid\x20\x01\x28\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"
    );
}

#[test]
fn events_request_of_a_tracker_that_comes_back() {
    let request = EventsRequest {
        tail_events: -1,
        ..EventsRequest::default()
    };
    assert_eq!(
        request.encode_to_vec(),
        b"\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"
    );
}

#[test]
fn version_response_is_a_list_of_one() {
    let response = VersionResponse {
        messages: vec![Version {
            version: Some(VersionInfo {
                tag: "v0.1.0".into(),
                ..VersionInfo::default()
            }),
            ..Version::default()
        }],
    };
    assert_eq!(response.encode_to_vec(), b"\x0a\x0a\x12\x08\x0a\x06v0.1.0");
}

#[test]
fn empty_events_and_health_of_a_service_are_still_sent() {
    let info = ServiceInfo {
        id: "apid".into(),
        state: "Running".into(),
        events: Some(ServiceEvents::default()),
        health: Some(ServiceHealth::default()),
    };
    assert_eq!(
        info.encode_to_vec(),
        b"\x0a\x04apid\x12\x07Running\x1a\x00\x22\x00"
    );
}

#[test]
fn meminfo_ends_at_field_48() {
    let info = MemInfo {
        memtotal: 1,
        directmap1g: 2,
        ..MemInfo::default()
    };
    // Field 48, varint: tag (48 << 3) = 384 = 0x80 0x03.
    assert_eq!(info.encode_to_vec(), b"\x08\x01\x80\x03\x02");
}

#[test]
fn machine_status_event_runs_and_is_ready() {
    let event = MachineStatusEvent {
        stage: MachineStage::Running.into(),
        status: Some(MachineStatus {
            ready: true,
            unmet_conditions: Vec::new(),
        }),
    };
    let any = EventPayload::from(event).pack();
    assert_eq!(any.type_url, "talos/runtime/machine.MachineStatusEvent");
    assert_eq!(any.value, b"\x08\x04\x12\x02\x08\x01");
}

#[test]
fn failed_sequence_carries_code_and_text() {
    let event = SequenceEvent {
        sequence: "upgrade".into(),
        error: Some(Error {
            code: Code::Locked.into(),
            message: "busy".into(),
            details: Vec::new(),
        }),
        ..SequenceEvent::default()
    };
    assert_eq!(
        event.encode_to_vec(),
        b"\x0a\x07upgrade\x1a\x08\x08\x01\x12\x04busy"
    );
}

#[test]
fn hello_has_data_that_is_empty() {
    assert_eq!(hello().encode_to_vec(), b"\x12\x00");
    let back = Event::decode(b"\x12\x00".as_slice()).unwrap();
    assert!(EventPayload::unpack(&back.data.unwrap()).unwrap().is_none());
}

#[test]
fn payload_comes_back_as_it_was() {
    let payload = EventPayload::from(TaskEvent {
        task: "stopAllServices".into(),
        action: task_event::Action::Stop.into(),
    });
    assert_eq!(
        EventPayload::unpack(&payload.pack()).unwrap(),
        Some(payload)
    );
}

#[test]
fn foreign_and_broken_payloads_are_told_apart() {
    for url in [
        "type.googleapis.com/machine.TaskEvent",
        "talos/runtime/machine.NewEvent",
        "TaskEvent",
    ] {
        let any = Any {
            type_url: url.into(),
            value: Vec::new(),
        };
        assert!(
            matches!(EventPayload::unpack(&any), Err(UnpackError::UnknownType(got)) if got == url)
        );
    }
    let any = Any {
        type_url: "talos/runtime/machine.TaskEvent".into(),
        value: b"\x0a\x7f".to_vec(),
    };
    assert!(matches!(
        EventPayload::unpack(&any),
        Err(UnpackError::Malformed { .. })
    ));
}

#[test]
fn descriptors_name_every_service() {
    let set = prost_types::FileDescriptorSet::decode(instar_api::FILE_DESCRIPTOR_SET).unwrap();
    let mut names: Vec<String> = set
        .file
        .iter()
        .flat_map(|file| {
            file.service
                .iter()
                .map(|service| format!("{}.{}", file.package(), service.name()))
        })
        .collect();
    names.sort();
    assert_eq!(
        names,
        [
            "cluster.ClusterService",
            "cosi.resource.State",
            "inspect.InspectService",
            "instar.BundleService",
            "instar.ImagePinService",
            "instar.ImageUpdateService",
            "instar.MetricsService",
            "instar.NodeCertificateService",
            "instar.TemporaryRegistryService",
            "instar.UpgradeFollowService",
            "instar.UpgradeService",
            "machine.ImageService",
            "machine.LifecycleService",
            "machine.MachineService",
            "machine.StorageService",
            "securityapi.SecurityService",
            "storage.StorageService",
            "time.TimeService",
        ]
    );
}
