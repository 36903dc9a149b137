//! The frame of the end-to-end tests: all that a test needs around the machine that it boots.
//!
//! A test configures, boots, asks and asserts:
//!
//! ```no_run
//! # use instar_tests::{ImageUnderTest, Node, Scratch, Outcome};
//! async fn says_its_version(scratch: Scratch) -> Outcome {
//!     let image = ImageUnderTest::first()?;
//!     let node = Node::plan(&scratch, &image).memory_mib(384).boot().await?;
//!     anyhow::ensure!(node.version().await?.tag == "v0.1.0");
//!     Ok(())
//! }
//! ```
//!
//! Everything real: nodes in QEMU, a registry of Debian's, another project's gRPC client. All of it listens on 127.0.0.1,
//! which is 10.0.2.2 for a guest, and ends with the test.
//!
//! The decision: a test boots the image that users get. Parts with stand-ins for the others were the other choice: quicker, and green while the
//! kernel, the firmware or another project's client does something else than the stand-in. So a boot is shared by a story in chapters.

mod any_server;
mod bad_line;
mod bare_boot;
mod browser;
mod bundle;
mod calls;
mod channels;
mod code_lines;
mod connect;
mod container_writer;
mod cosign;
mod course;
mod dead_network;
mod disk_files;
mod esp_image;
mod fat;
mod firmware;
mod flaky_registry;
mod fleet_file;
mod fleet_lock;
mod followed_program;
mod greeter;
mod grpcio;
mod hang_up;
mod held_connection;
mod hostile_dhcp_server;
mod http_client;
mod http_server;
mod https_registry;
mod identity;
mod image_under_test;
mod initramfs;
mod installers;
mod instarctl;
mod kubernetes;
mod local_server;
mod log_receiver;
mod machine_config;
mod node;
mod node_facts;
mod oci_image;
mod other_rootfs;
mod outage;
mod parked;
pub mod power_cuts;
mod prometheus;
mod proxy;
mod python;
mod registry;
mod rollout_times;
mod run_command;
mod runner;
mod saboteur;
mod scratch;
mod scripted_init;
mod scripted_registry;
mod served_disk;
mod simulated_machines;
mod site;
mod slope;
mod steady_calls;
mod talosctl;
mod terminal;
mod time_server;
mod tls_client;
mod workspace;
mod wrong_time_server;

pub use bad_line::{BadLine, Impairment};
pub use bare_boot::{BareBoot, BareMemory, trivial_boot};
pub use browser::{Browser, Screen};
pub use bundle::{
    bundle, bundle_directory, bundle_of_extension, bundle_with, copy_from_fat, extension_file_of,
    fat_stick, fat_stick_with, place_for_sticks, place_for_usb_sticks, plug_in, plug_into_usb,
    pull_out, stick,
};
pub use calls::{Answer, Calls};
pub use channels::{Channels, yaml_block};
pub use code_lines::code_lines_below;
pub use container_writer::ContainerWriter;
pub use cosign::Cosign;
pub use course::{Course, Length, commit_number};
pub use dead_network::{Asked, DeadNetwork, Dhcp};
pub use esp_image::EspImage;
pub use fat::Fat;
pub use firmware::{BY_OUR_BOOT_ENTRY, UefiVariables, secure_uefi, test_keys, uefi};
pub use flaky_registry::{FlakyRegistry, Trouble};
pub use fleet_file::fleet_file;
pub use fleet_lock::FleetLockServer;
pub use followed_program::FollowedProgram;
pub use greeter::{
    GREETER, GREETER_PORT, Greeter, OPEN_GATE, SHUT_GATE, WITH_CGROUPS, greeter_image,
    plan_with_greeter, push_greeter, push_greeter_edition,
};
pub use grpcio::Grpcio;
pub use hang_up::{HangUp, ImpatientCaller};
pub use held_connection::{Held, HeldConnection, longest_pause};
pub use hostile_dhcp_server::HostileDhcpServer;
pub use http_client::{HttpAnswer, http};
pub use http_server::HttpServer;
pub use https_registry::HttpsRegistry;
pub use identity::Identity;
pub use image_under_test::{ImageUnderTest, kernel_under_test};
pub use initramfs::Initramfs;
pub use installers::INSTALLER;
pub use instarctl::{Instarctl, Said};
pub use kubernetes::{
    Airlock, ApiProxy, AuditedRequest, CapiExtension, ClusterApi, Committed, ControlPlane,
    Database, ExtensionSource, FleetOperator, Helm, JobKubelets, KUBERNETES_BASE, Kubectl,
    ObjectServer, PAUSE, PlainApi, ProcessMemory, RowWriter, TokenRights, UpgradeController,
    UpgradeCost, UpgradeMeter, cluster_section, cost_table, extension_file, gives_up_soon,
    install_fleet_operator, kubernetes_version, push_base, push_control_plane, push_core_dns,
    push_extension, push_extension_with, push_kubectl, push_kured, push_operator_image, push_pause,
    push_postgresql, push_system_upgrade_controller, push_upgrade_image, worker_config,
};
pub use log_receiver::LogReceiver;
pub use machine_config::MachineConfig;
pub use node::{API_PORT, Machine, Node, NodePlan};
pub use oci_image::{OciImage, Pushed};
pub use other_rootfs::{
    rootfs_of_version, rootfs_that_dies_once, rootfs_that_hangs, rootfs_with_saboteur,
    rootfs_with_script, rootfs_without_runtime,
};
pub use outage::{Outage, OutageProbe};
pub use parked::Parked;
pub use prometheus::parse_metrics;
pub use proxy::HttpProxy;
pub use registry::{Registry, config as registry_config, sha256_digest};
pub use rollout_times::RolloutTimes;
pub use runner::{Outcome, Test, chapter, run};
pub use saboteur::Saboteur;
pub use scratch::Scratch;
pub use scripted_init::{DoubleRootfs, ScriptedInit};
pub use scripted_registry::{Reply, ScriptedRegistry};
pub use served_disk::ServedDisk;
pub use simulated_machines::{SimulatedMachines, Upgraded};
pub use site::Site;
pub use slope::Slope;
pub use steady_calls::{Calling, SteadyCalls, version_over};
pub use talosctl::{
    Ending, Fields, First, Followed, Prepared, Release, Talosctl, prepare_upgrade,
    reboot_and_follow, rotate_ca, upgrade_and_follow,
};
pub use terminal::Terminal;
pub use time_server::TimeServer;
pub use tls_client::{End, TlsClient, roots};
pub use workspace::{
    guest_program, guest_program_file, image_program, target_directory, workspace_root,
};
pub use wrong_time_server::WrongTimeServer;

/// The host's 127.0.0.1 as a guest reaches it through QEMU's user network.
pub const HOST_FOR_GUEST: &str = "10.0.2.2";
