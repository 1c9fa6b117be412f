//! Driver libraries, opened while gpurun runs. They are never closed: they leave threads and exit handlers behind
//! that must not lose their code.

use std::ffi::{CStr, CString, OsStr, c_char, c_int, c_void};
use std::os::unix::ffi::OsStrExt;
use std::ptr::NonNull;

/// An open library.
#[derive(Clone, Copy, Debug)]
pub(super) struct Library(NonNull<c_void>);

/// Where a function of a [`Library`] stands.
#[derive(Clone, Copy, Debug)]
pub(super) struct Address(NonNull<c_void>);

// SAFETY: a token of the loader, which takes it from any thread; the library behind it is never closed.
unsafe impl Send for Library {}
// SAFETY: as above; nothing is changed through it.
unsafe impl Sync for Library {}
// SAFETY: an address of code that stays mapped.
unsafe impl Send for Address {}
// SAFETY: as above; nothing is changed through it.
unsafe impl Sync for Address {}

impl Library {
    /// Opens a library by name or path, its functions visible to nobody else.
    ///
    /// # Errors
    /// The loader's words.
    pub(super) fn open(name: &OsStr, binding: c_int) -> Result<Self, String> {
        let name = CString::new(name.as_bytes()).map_err(|error| error.to_string())?;
        // SAFETY: a plain dlopen of a terminated name.
        let library = unsafe { libc::dlopen(name.as_ptr(), binding | libc::RTLD_LOCAL) };
        NonNull::new(library).map(Self).ok_or_else(last_error)
    }

    /// Looks a function up.
    ///
    /// # Errors
    /// The loader's words.
    pub(super) fn address(self, name: &CStr) -> Result<Address, String> {
        // SAFETY: the library is open and the name terminated.
        let address = unsafe { libc::dlsym(self.0.as_ptr(), name.as_ptr()) };
        NonNull::new(address).map(Address).ok_or_else(last_error)
    }
}

impl Address {
    /// The function that stands there.
    ///
    /// # Safety
    /// `F` must be the type of a pointer to that function.
    pub(super) unsafe fn function<F: Copy>(self) -> F {
        const { assert!(size_of::<F>() == size_of::<*mut c_void>(), "a function pointer is one address") };
        // SAFETY: of the same size, as just checked, and by the caller's word of the right type.
        unsafe { std::mem::transmute_copy::<*mut c_void, F>(&self.0.as_ptr()) }
    }
}

/// The loader's words for its last failure.
fn last_error() -> String {
    // SAFETY: dlerror returns null or a terminated string that lives until the next loader call of this thread.
    let text: *const c_char = unsafe { libc::dlerror() };
    if text.is_null() {
        return "no reason given".to_owned();
    }
    // SAFETY: not null, as just checked.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_there_is_named_by_the_loader() {
        let missing = Library::open(OsStr::new("libno-such-library.so.9"), libc::RTLD_LAZY);
        assert!(missing.unwrap_err().contains("libno-such-library.so.9"));
        let own = Library::open(OsStr::new("libc.so.6"), libc::RTLD_LAZY).unwrap();
        assert!(own.address(c"no_such_function").unwrap_err().contains("no_such_function"));
        let getpid = own.address(c"getpid").unwrap();
        // SAFETY: the signature of getpid.
        let getpid = unsafe { getpid.function::<unsafe extern "C" fn() -> c_int>() };
        // SAFETY: takes nothing.
        assert_eq!(unsafe { getpid() }.cast_unsigned(), std::process::id());
    }
}
