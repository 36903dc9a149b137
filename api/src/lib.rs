//! The machine API on the wire: messages, clients and server traits, generated from `proto/`.
//!
//! Names and numbers follow the Talos machine API, so that its clients can talk to an Instar node; the files are written
//! for this project and hold only the methods and fields that a node serves. One module per proto package. Server traits answer
//! UNIMPLEMENTED for every method that an implementation leaves out.
//!
//! The decision: the `.proto` files are written here, with Talos's names and numbers and only the methods and fields that a node serves. To
//! compile Talos's own files was the other choice: it would not show which parts are served and which only have a name, and each of their
//! releases would change this API.

#![forbid(unsafe_code)]

pub mod answers;
pub mod events;

/// Largest message that either side accepts, in bytes.
pub const MAX_MESSAGE_BYTES: usize = 32 * 1024 * 1024;

pub use answers::CHANGES_VERSION;

/// TCP port of the API.
pub const PORT: u16 = 50000;

/// TCP port at which machines with the authority's key sign certificates for those without it.
pub const CERTIFICATES_PORT: u16 = 50001;

/// The one method that is served there.
pub const CERTIFICATE_METHOD: &str = "/securityapi.SecurityService/Certificate";

/// gRPC metadata key of that method's token.
pub const TOKEN_KEY: &str = "token";

/// gRPC metadata key that names the one node that a call is for.
pub const NODE_KEY: &str = "node";

/// gRPC metadata key of older clients: any number of nodes that a call is for.
pub const NODES_KEY: &str = "nodes";

/// Annotation of the machine config in force while it is on trial: it is taken back unless it is applied to stay.
pub const ON_TRIAL: &str = "instar.dev/on-trial";

/// Encoded `google.protobuf.FileDescriptorSet` of every file, for reflection.
pub const FILE_DESCRIPTOR_SET: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/descriptors.bin"));

/// Paths of the methods that return a stream, sorted.
pub const STREAMING_METHODS: &[&str] = include!(concat!(env!("OUT_DIR"), "/streaming_methods.rs"));

/// The paths of all methods whose requests are streams: files that are sent to a node piece by piece.
pub const UPLOAD_METHODS: &[&str] = include!(concat!(env!("OUT_DIR"), "/upload_methods.rs"));

include!(concat!(env!("OUT_DIR"), "/requests.rs"));

/// Declares the module of one proto package.
macro_rules! package {
    ($(#[$doc:meta])* $name:ident, $file:literal $(, $($inner:tt)*)?) => {
        $(#[$doc])*
        #[allow(
            missing_docs,
            unused_qualifications,
            unreachable_pub,
            clippy::all,
            clippy::too_many_lines
        )]
        pub mod $name {
            tonic::include_proto!($file);
            $($($inner)*)?
        }
    };
}

package!(
    /// The messages that all services share.
    common, "common"
);
package!(
    /// `MachineService`, `ImageService`, `LifecycleService` and their messages.
    machine, "machine"
);
package!(
    /// `StorageService`: disks.
    storage, "storage"
);
package!(
    /// `TimeService`.
    time, "time"
);
package!(
    /// `ClusterService`.
    cluster, "cluster"
);
package!(
    /// `SecurityService`: certificates for machines without the authority's key.
    securityapi, "securityapi"
);
package!(
    /// `InspectService`.
    inspect, "inspect"
);

package!(
    /// `UpgradeService` and others: methods that Talos does not have.
    instar, "instar"
);

/// Google's RPC error model.
pub mod google {
    package!(
        /// `google.rpc.Status`, an error inside a reply.
        rpc, "google.rpc"
    );
}

/// The resource API.
pub mod cosi {
    package!(
        /// `State`: read and watch resources.
        resource, "cosi.resource",
        /// Resources about resources.
        pub mod meta {
            tonic::include_proto!("cosi.resource.meta");
        }
    );
}

/// Modules nested like their packages: generated code refers to its imports by these paths.
#[allow(missing_docs)]
pub mod talos {
    pub mod resource {
        /// The specs of resources in their protobuf encoding, by group.
        pub mod definitions {
            package!(
                /// Disks and their content.
                block, "talos.resource.definitions.block"
            );
            package!(
                /// The machines of the cluster.
                cluster, "talos.resource.definitions.cluster"
            );
            package!(
                /// The machine's config.
                config, "talos.resource.definitions.config"
            );
            package!(
                /// The machine's hardware.
                hardware, "talos.resource.definitions.hardware"
            );
            package!(
                /// Resources that only Instar has.
                instar, "instar.resource.definitions"
            );
            package!(
                /// Links, addresses, routes, names.
                network, "talos.resource.definitions.network"
            );
            package!(
                /// The machine as it runs.
                runtime, "talos.resource.definitions.runtime"
            );
            package!(
                /// Keys and tokens.
                secrets, "talos.resource.definitions.secrets"
            );
            package!(
                /// Images and keys that the machine accepts.
                security, "talos.resource.definitions.security"
            );
            package!(
                /// Services and the clock.
                v1alpha1, "talos.resource.definitions.v1alpha1"
            );
        }
    }
}

pub use talos::resource::definitions;
