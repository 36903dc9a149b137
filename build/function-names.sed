# Names of functions (Rust's mangling, v0) without what another build of the same sources may change.
# A crate's number, which follows from the versions of its libraries.
s/Cs[0-9A-Za-z]+_/C_/g
# A reference to an earlier part of the name, which counts its letters.
s/B[0-9A-Za-z]*_/B_/g
# LLVM's numbers of modules, and of functions with the same name.
s/(\.llvm)?\.[0-9]+$//
