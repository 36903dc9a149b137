//! The machine API on the wire: messages, clients and server traits, generated from `proto/`.
//!
//! Names and numbers follow the Talos machine API, so that its clients can talk to an Instar node; the files are written
//! for this project and hold what a node serves. One module per proto package. Server traits answer UNIMPLEMENTED for
//! every method that an implementation leaves out.
//!
//! The decision: the `.proto` files are written here, with Talos's names and numbers and only the methods and fields that a node serves. To
//! compile Talos's own files was the other choice: nobody could see then what is served and what only has a name, and each of their
//! releases would change this API.

#![forbid(unsafe_code)]

pub mod events;

/// Largest message that either side accepts, in bytes.
pub const MAX_MESSAGE_BYTES: usize = 32 * 1024 * 1024;

/// The words, with `UNAVAILABLE`, at the end of a stream whose node changes to another version without a reboot.
pub const CHANGES_VERSION: &str = "this node changes to another version; ask again";

/// TCP port of the API.
pub const PORT: u16 = 50000;

/// gRPC metadata key that names the one node that a call is for.
pub const NODE_KEY: &str = "node";

/// gRPC metadata key of older clients: any number of nodes that a call is for.
pub const NODES_KEY: &str = "nodes";

/// Encoded `google.protobuf.FileDescriptorSet` of every file, for reflection.
pub const FILE_DESCRIPTOR_SET: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/descriptors.bin"));

/// Paths of the methods that answer with a stream, sorted.
pub const STREAMING_METHODS: &[&str] = include!(concat!(env!("OUT_DIR"), "/streaming_methods.rs"));

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
    /// What all services share.
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
    /// `InspectService`.
    inspect, "inspect"
);

package!(
    /// `UpgradeService`: what Talos has no method for.
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

/// Modules as deep as their packages: generated code names what it imports by the way there.
#[allow(missing_docs)]
pub mod talos {
    pub mod resource {
        /// What is in resources, by group: the protobuf encoding of their specs.
        pub mod definitions {
            package!(
                /// Disks and what is on them.
                block, "talos.resource.definitions.block"
            );
            package!(
                /// The machines of the cluster.
                cluster, "talos.resource.definitions.cluster"
            );
            package!(
                /// What the machine was told.
                config, "talos.resource.definitions.config"
            );
            package!(
                /// What the machine is built of.
                hardware, "talos.resource.definitions.hardware"
            );
            package!(
                /// What only Instar has.
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
                /// Services and the clock.
                v1alpha1, "talos.resource.definitions.v1alpha1"
            );
        }
    }
}

pub use talos::resource::definitions;
