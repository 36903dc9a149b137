//! Requests of machined that init refuses.

use anyhow::ensure;
use instar_tests::{Outcome, Scratch, ScriptedInit, Test, tests};

use super::{Chapter, told};

pub(super) fn tests() -> Vec<Test> {
    tests![what_is_refused_changes_nothing]
}

/// Invalid requests, and images that differ from their description. The generation goes on through all of them, and
/// none leaves a trace.
async fn what_is_refused_changes_nothing(scratch: Scratch) -> Outcome {
    let (script, expected) = told(REFUSALS);
    let arguments = "instar.boot-deadline=soon instar.watchdog=on";
    let init = ScriptedInit::boot(&scratch, arguments, &script)?;
    init.says_until_it_halts(&expected)?;
    // Of the default, 300 s, in place of the argument.
    let told = init.deadlines();
    ensure!(matches!(told[..], [200..300]), "{told:?}");
    Ok(())
}

const REFUSALS: &[Chapter] = &[
    ARGUMENTS_OF_THE_KERNEL_THAT_MAKE_NO_SENSE,
    A_GENERATION_THAT_STARTS,
    WHAT_COMES_TOO_EARLY_OR_FROM_ELSEWHERE,
    OTHER_THAN_ONE_IMAGE,
    IMAGES_WITHOUT_ALL_SEALS,
    IMAGES_OF_ANOTHER_DIGEST,
    IMAGES_THAT_ARE_NO_SQUASHFS,
    WHAT_WAS_NOT_PREPARED,
    MESSAGES_THAT_ARE_NONE,
    A_MESSAGE_THAT_IS_TOO_LONG,
    THE_STATE_OF_BEFORE,
];

const ARGUMENTS_OF_THE_KERNEL_THAT_MAKE_NO_SENSE: Chapter = Chapter {
    does: "",
    says: "
        init: instar.boot-deadline=soon: not a number of seconds from 1 to 86400; ignored
        init: instar.watchdog=on: can only be 'off'; ignored
    ",
};

const A_GENERATION_THAT_STARTS: Chapter = Chapter {
    does: "
        hello
    ",
    says: "
        init: generation 1 starts, boot id …
        double: welcome generation=1 start=boot deadline=… kept=[] failed=- cause=-
    ",
};

const WHAT_COMES_TOO_EARLY_OR_FROM_ELSEWHERE: Chapter = Chapter {
    does: "
        next self v2 60
        healthy-elsewhere
        healthy
    ",
    says: "
        init: refused 'next': this generation has not reported healthy yet
        double: error next wrong-state: this generation has not reported healthy yet
        init: refused 'healthy': this is the boot id of another generation
        double: error healthy other-boot-id: this is the boot id of another generation
        init: generation 1 is healthy and committed
        double: ok healthy
    ",
};

const OTHER_THAN_ONE_IMAGE: Chapter = Chapter {
    does: "
        next self v2 60 none
        next self v2 60 twice
    ",
    says: "
        init: refused 'next': 0 descriptors came with the message, not 1
        double: error next descriptors: 0 descriptors came with the message, not 1
        init: refused 'next': 2 descriptors came with the message, not 1
        double: error next descriptors: 2 descriptors came with the message, not 1
    ",
};

const IMAGES_WITHOUT_ALL_SEALS: Chapter = Chapter {
    does: "
        next self v2 60 unsealed
        next self v2 60 half-sealed
        next self v2 60 file
    ",
    says: "
        init: refused 'next': the image lacks the seals …
        double: error next not-sealed: the image lacks the seals …
        init: refused 'next': the image lacks the seals …
        double: error next not-sealed: the image lacks the seals …
        init: refused 'next': the image lacks the seals …
        double: error next not-sealed: the image lacks the seals …
    ",
};

const IMAGES_OF_ANOTHER_DIGEST: Chapter = Chapter {
    does: "
        next self v2 60 flipped
        next self v2 60 truncated
    ",
    says: "
        init: refused 'next': the image hashes to …, not to …
        double: error next wrong-digest: the image hashes to …, not to …
        init: refused 'next': the image hashes to …, not to …
        double: error next wrong-digest: the image hashes to …, not to …
    ",
};

const IMAGES_THAT_ARE_NO_SQUASHFS: Chapter = Chapter {
    does: "
        next self v2 60 empty
        next self v2 60 garbage
        next self v2 60 short
    ",
    says: "
        init: refused 'next': cannot mount the image as a squashfs: …
        double: error next not-mountable: cannot mount the image as a squashfs: …
        init: refused 'next': cannot mount the image as a squashfs: …
        double: error next not-mountable: cannot mount the image as a squashfs: …
        init: refused 'next': cannot mount the image as a squashfs: …
        double: error next not-mountable: cannot mount the image as a squashfs: …
    ",
};

const WHAT_WAS_NOT_PREPARED: Chapter = Chapter {
    does: "
        keep-nothing api
        drop api
        kexec
    ",
    says: "
        init: refused 'keep': 0 descriptors came with the message, not 1
        double: error keep descriptors: 0 descriptors came with the message, not 1
        init: refused 'drop': nothing is kept under the name 'api'
        double: error drop not-kept: nothing is kept under the name 'api'
        init: refused 'kexec': no kernel is loaded for kexec
        double: error kexec kernel: no kernel is loaded for kexec
    ",
};

const MESSAGES_THAT_ARE_NONE: Chapter = Chapter {
    does: "
        raw hello
        raw instar 2 hello
        raw instar 1 explode
        raw instar 1 drop
        raw instar 1 next\\nblake3 a5\\nversion v2\\ndeadline 60
    ",
    says: "
        init: refused '-': the first line is not 'instar 1 VERB'
        double: error - bad-message: the first line is not 'instar 1 VERB'
        init: refused 'hello': version '2', but only 1 is spoken here
        double: error hello other-version: version '2', but only 1 is spoken here
        init: refused 'explode': unknown verb
        double: error explode unknown-verb: unknown verb
        init: refused 'drop': the key 'name' is missing
        double: error drop bad-message: the key 'name' is missing
        init: refused 'next': the key 'blake3': not 64 lower-case hex digits
        double: error next bad-message: the key 'blake3': not 64 lower-case hex digits
    ",
};

const A_MESSAGE_THAT_IS_TOO_LONG: Chapter = Chapter {
    does: "
        flood 5000
    ",
    says: "
        init: refused '-': more than 4096 bytes
        double: error - bad-message: more than 4096 bytes
    ",
};

const THE_STATE_OF_BEFORE: Chapter = Chapter {
    does: "
        state
        halt
    ",
    says: "
        double: state … loops=1 cgroups=2
        init: machined asks for halt
        reboot: System halted
    ",
};
