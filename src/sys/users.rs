//! User names and uids, through the C library, so that directory services are asked as well.

use std::ffi::{CStr, CString};
use std::mem::MaybeUninit;
use std::ptr;

/// Longest answer of the user database that is read.
const BUFFER: usize = 64 * 1024;

/// The uid this process acts with.
pub fn effective_uid() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// The name of a user; `None` where the database does not know it.
pub fn name_of(uid: u32) -> Option<String> {
    lookup(
        |entry, buffer, result| {
            // SAFETY: every pointer is to memory of the stated size that outlives the call.
            unsafe { libc::getpwuid_r(uid, entry, buffer.as_mut_ptr().cast(), buffer.len(), result) }
        },
        |entry| {
            // SAFETY: a successful lookup leaves `pw_name` pointing at a terminated string in the buffer.
            unsafe { CStr::from_ptr(entry.pw_name) }.to_string_lossy().into_owned()
        },
    )
}

/// The uid of a user named by name, or by its uid in digits.
pub fn uid_of(name: &str) -> Option<u32> {
    let c_name = CString::new(name).ok()?;
    lookup(
        |entry, buffer, result| {
            // SAFETY: every pointer is to memory of the stated size that outlives the call; the name is terminated.
            unsafe {
                libc::getpwnam_r(c_name.as_ptr(), entry, buffer.as_mut_ptr().cast(), buffer.len(), result)
            }
        },
        |entry| entry.pw_uid,
    )
    .or_else(|| name.parse().ok())
}

/// Runs one of the reentrant lookups and reads its entry while the buffer lives.
fn lookup<T>(
    call: impl FnOnce(*mut libc::passwd, &mut [u8], *mut *mut libc::passwd) -> libc::c_int,
    read: impl FnOnce(&libc::passwd) -> T,
) -> Option<T> {
    let mut entry = MaybeUninit::<libc::passwd>::uninit();
    let mut buffer = vec![0_u8; BUFFER];
    let mut result: *mut libc::passwd = ptr::null_mut();
    let code = call(entry.as_mut_ptr(), &mut buffer, &mut result);
    if code != 0 || result.is_null() {
        return None;
    }
    // SAFETY: a zero code with a result says that the entry was filled in; its strings lie in `buffer`.
    Some(read(unsafe { entry.assume_init_ref() }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn root_is_root_and_digits_are_uids() {
        assert_eq!(name_of(0).as_deref(), Some("root"));
        assert_eq!(uid_of("root"), Some(0));
        assert_eq!(uid_of("54321"), Some(54321));
        assert_eq!(uid_of("no such user"), None);
        assert_eq!(uid_of("nul\0"), None);
    }
}
