/* What the wheel is linked against in place of zig's own unwinder: the names that Rust's standard library asks of
 * libgcc_s.so.1, which every glibc system has. When an interpreter ends, it ends its threads by a forced unwind of glibc's,
 * through our frames; an unwinder of another maker inside the wheel crashes there. */
#define SYMBOL(name) void name(void) {}
SYMBOL(_Unwind_Backtrace)
SYMBOL(_Unwind_DeleteException)
SYMBOL(_Unwind_GetCFA)
SYMBOL(_Unwind_GetDataRelBase)
SYMBOL(_Unwind_GetGR)
SYMBOL(_Unwind_GetIP)
SYMBOL(_Unwind_GetIPInfo)
SYMBOL(_Unwind_GetLanguageSpecificData)
SYMBOL(_Unwind_GetRegionStart)
SYMBOL(_Unwind_GetTextRelBase)
SYMBOL(_Unwind_RaiseException)
SYMBOL(_Unwind_Resume)
SYMBOL(_Unwind_SetGR)
SYMBOL(_Unwind_SetIP)
