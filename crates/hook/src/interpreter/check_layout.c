/* Checks the offsets in layout.rs against the headers of one CPython version.
 *
 * Compile it once for each interpreter, on x86-64 or aarch64 Linux. It needs no Python library:
 *
 *     cc -std=c11 -I "$(python3 -c 'import sysconfig; print(sysconfig.get_path("include"))')" \
 *         check_layout.c -o check_layout && ./check_layout
 *
 * A wrong offset fails the compilation. The program then checks the bit fields, which the compiler
 * cannot check. With -DPRINT_LAYOUT it prints the offsets of the headers instead, as fields of
 * layout.rs: start a new version's entry from them.
 *
 * A unit test of layout.rs compares the numbers below with the Rust table, so that both agree.
 */

#define Py_BUILD_CORE 1
#include <Python.h>

#define VERSION (PY_VERSION_HEX >> 16 & 0xff)

#if PY_VERSION_HEX >> 24 != 3 || VERSION < 10 || VERSION > 14
#error "layout.rs has no entry for this version"
#endif
#ifdef Py_GIL_DISABLED
#error "layout.rs has no entry for free-threaded builds"
#endif
#ifdef Py_TRACE_REFS
#error "layout.rs has no entry for builds with Py_TRACE_REFS"
#endif

#include <stddef.h>
#include <stdio.h>
#include <string.h>

#if VERSION == 10
#include <frameobject.h>
#else
#include <internal/pycore_code.h>
#include <internal/pycore_frame.h>
#endif
#if VERSION >= 14
#include <internal/pycore_interpframe.h>
#include <internal/pycore_stackref.h>
#endif

#ifdef PRINT_LAYOUT
#define VALUE(field, actual, expected) printf("    %s: %zu,\n", #field, (size_t)(actual));
#else
#define VALUE(field, actual, expected) \
    _Static_assert((actual) == (expected), "layout.rs: " #field " differs from these headers");
#endif
#define OFFSET(field, type, member, expected) VALUE(field, offsetof(type, member), expected)

/* Returns the state bits of a string with this character size and these flags. */
static unsigned text_state(int kind, int compact, int ascii) {
    PyASCIIObject text;
    unsigned bits;
    memset(&text, 0, sizeof text);
    text.state.kind = kind;
    text.state.compact = compact;
    text.state.ascii = ascii;
    memcpy(&bits, &text.state, sizeof bits);
    return bits;
}

int main(void) {
    /* Every version */
    OFFSET(OBJECT_TYPE, PyObject, ob_type, 8)
    OFFSET(OBJECT_SIZE, PyVarObject, ob_size, 16)
    OFFSET(TYPE_INSTANCE_SIZE, PyTypeObject, tp_basicsize, 32)
    OFFSET(HASH, PyBytesObject, ob_shash, 24)
    OFFSET(HASH, PyASCIIObject, hash, 24)
    OFFSET(BYTES_DATA, PyBytesObject, ob_sval, 32)
    OFFSET(TEXT_LENGTH, PyASCIIObject, length, 16)
    OFFSET(TEXT_STATE, PyASCIIObject, state, 32)

#if VERSION == 10
    OFFSET(thread_frame, PyThreadState, frame, 24)
    OFFSET(frame_code, PyFrameObject, f_code, 32)
    OFFSET(frame_previous, PyFrameObject, f_back, 24)
    OFFSET(frame_instruction, PyFrameObject, f_lasti, 96)
    OFFSET(frame_first_local, PyFrameObject, f_localsplus, 352)
    VALUE(code_size, sizeof(PyCodeObject), 176)
    OFFSET(code_file_name, PyCodeObject, co_filename, 104)
    OFFSET(code_name, PyCodeObject, co_name, 112)
    OFFSET(code_first_line, PyCodeObject, co_firstlineno, 40)
    OFFSET(code_line_table, PyCodeObject, co_linetable, 120)
    OFFSET(code_argument_count, PyCodeObject, co_argcount, 16)
    VALUE(text_ascii_data, sizeof(PyASCIIObject), 48)
    VALUE(text_compact_data, sizeof(PyCompactUnicodeObject), 72)
    OFFSET(text_data_pointer, PyUnicodeObject, data, 72)
#endif

#if VERSION == 11
    OFFSET(thread_frame, PyThreadState, cframe, 56)
    OFFSET(cframe_frame, _PyCFrame, current_frame, 8)
    OFFSET(frame_code, _PyInterpreterFrame, f_code, 32)
    OFFSET(frame_previous, _PyInterpreterFrame, previous, 48)
    OFFSET(frame_instruction, _PyInterpreterFrame, prev_instr, 56)
    OFFSET(frame_owner, _PyInterpreterFrame, owner, 69)
    OFFSET(frame_first_local, _PyInterpreterFrame, localsplus, 72)
    VALUE(code_size, offsetof(PyCodeObject, co_code_adaptive), 184)
    OFFSET(code_file_name, PyCodeObject, co_filename, 112)
    OFFSET(code_name, PyCodeObject, co_name, 120)
    OFFSET(code_qualified_name, PyCodeObject, co_qualname, 128)
    OFFSET(code_first_line, PyCodeObject, co_firstlineno, 72)
    OFFSET(code_line_table, PyCodeObject, co_linetable, 136)
    OFFSET(code_argument_count, PyCodeObject, co_argcount, 56)
    OFFSET(code_local_kinds, PyCodeObject, co_localspluskinds, 104)
    OFFSET(code_bytecode, PyCodeObject, co_code_adaptive, 184)
    VALUE(text_ascii_data, sizeof(PyASCIIObject), 48)
    VALUE(text_compact_data, sizeof(PyCompactUnicodeObject), 72)
    OFFSET(text_data_pointer, PyUnicodeObject, data, 72)
#endif

#if VERSION == 12
    OFFSET(thread_frame, PyThreadState, cframe, 56)
    OFFSET(cframe_frame, _PyCFrame, current_frame, 0)
    OFFSET(frame_code, _PyInterpreterFrame, f_code, 0)
    OFFSET(frame_previous, _PyInterpreterFrame, previous, 8)
    OFFSET(frame_instruction, _PyInterpreterFrame, prev_instr, 56)
    OFFSET(frame_owner, _PyInterpreterFrame, owner, 70)
    OFFSET(frame_first_local, _PyInterpreterFrame, localsplus, 72)
    VALUE(code_size, offsetof(PyCodeObject, co_code_adaptive), 192)
    OFFSET(code_file_name, PyCodeObject, co_filename, 112)
    OFFSET(code_name, PyCodeObject, co_name, 120)
    OFFSET(code_qualified_name, PyCodeObject, co_qualname, 128)
    OFFSET(code_first_line, PyCodeObject, co_firstlineno, 68)
    OFFSET(code_line_table, PyCodeObject, co_linetable, 136)
    OFFSET(code_argument_count, PyCodeObject, co_argcount, 52)
    OFFSET(code_local_kinds, PyCodeObject, co_localspluskinds, 104)
    OFFSET(code_version, PyCodeObject, co_version, 92)
    OFFSET(code_bytecode, PyCodeObject, co_code_adaptive, 192)
    VALUE(text_ascii_data, sizeof(PyASCIIObject), 40)
    VALUE(text_compact_data, sizeof(PyCompactUnicodeObject), 56)
    OFFSET(text_data_pointer, PyUnicodeObject, data, 56)
#endif

#if VERSION == 13
    OFFSET(thread_frame, PyThreadState, current_frame, 72)
    OFFSET(frame_code, _PyInterpreterFrame, f_executable, 0)
    OFFSET(frame_previous, _PyInterpreterFrame, previous, 8)
    OFFSET(frame_instruction, _PyInterpreterFrame, instr_ptr, 56)
    OFFSET(frame_owner, _PyInterpreterFrame, owner, 70)
    OFFSET(frame_first_local, _PyInterpreterFrame, localsplus, 72)
    VALUE(code_size, offsetof(PyCodeObject, co_code_adaptive), 200)
    OFFSET(code_file_name, PyCodeObject, co_filename, 112)
    OFFSET(code_name, PyCodeObject, co_name, 120)
    OFFSET(code_qualified_name, PyCodeObject, co_qualname, 128)
    OFFSET(code_first_line, PyCodeObject, co_firstlineno, 68)
    OFFSET(code_line_table, PyCodeObject, co_linetable, 136)
    OFFSET(code_argument_count, PyCodeObject, co_argcount, 52)
    OFFSET(code_local_kinds, PyCodeObject, co_localspluskinds, 104)
    OFFSET(code_version, PyCodeObject, co_version, 92)
    OFFSET(code_bytecode, PyCodeObject, co_code_adaptive, 200)
    VALUE(text_ascii_data, sizeof(PyASCIIObject), 40)
    VALUE(text_compact_data, sizeof(PyCompactUnicodeObject), 56)
    OFFSET(text_data_pointer, PyUnicodeObject, data, 56)
#endif

#if VERSION == 14
    OFFSET(thread_frame, PyThreadState, current_frame, 72)
    OFFSET(frame_code, _PyInterpreterFrame, f_executable, 0)
    OFFSET(frame_previous, _PyInterpreterFrame, previous, 8)
    OFFSET(frame_instruction, _PyInterpreterFrame, instr_ptr, 56)
    OFFSET(frame_owner, _PyInterpreterFrame, owner, 74)
    OFFSET(frame_first_local, _PyInterpreterFrame, localsplus, 80)
    VALUE(reference_tags, Py_TAG_BITS, 3)
    VALUE(code_size, offsetof(PyCodeObject, co_code_adaptive), 208)
    OFFSET(code_file_name, PyCodeObject, co_filename, 112)
    OFFSET(code_name, PyCodeObject, co_name, 120)
    OFFSET(code_qualified_name, PyCodeObject, co_qualname, 128)
    OFFSET(code_first_line, PyCodeObject, co_firstlineno, 68)
    OFFSET(code_line_table, PyCodeObject, co_linetable, 136)
    OFFSET(code_argument_count, PyCodeObject, co_argcount, 52)
    OFFSET(code_local_kinds, PyCodeObject, co_localspluskinds, 104)
    OFFSET(code_version, PyCodeObject, co_version, 92)
    OFFSET(code_bytecode, PyCodeObject, co_code_adaptive, 208)
    VALUE(text_ascii_data, sizeof(PyASCIIObject), 40)
    VALUE(text_compact_data, sizeof(PyCompactUnicodeObject), 56)
    OFFSET(text_data_pointer, PyUnicodeObject, data, 56)
#endif

#if VERSION >= 11
    VALUE(FIRST_INTERPRETER_OWNER, FRAME_OWNED_BY_FRAME_OBJECT + 1, 3)
    VALUE(LOCAL_KIND_CELL, CO_FAST_CELL, 0x40)
#endif

    if (text_state(1, 0, 0) != 1u << 2 || text_state(7, 0, 0) != 7u << 2 || text_state(0, 1, 0) != 1u << 5 ||
        text_state(0, 0, 1) != 1u << 6) {
        fprintf(stderr, "layout.rs: the bit fields of PyASCIIObject.state differ from these headers\n");
        return 1;
    }
    printf("layout.rs agrees with the headers of CPython %s\n", PY_VERSION);
    return 0;
}
