/* Maps of files that somebody cuts off: reading behind the new end raises SIGBUS, which ends the process.
 *
 *   watch(address, nbytes) -> int     from now on, what is lost of this map reads as bytes 0xFF: NaN in every float
 *   forget(slot)                      the map is gone
 *
 * `watch` gives -1 where it has no room, and the caller has to read instead of map. The first call installs a handler.
 * It puts a page of memory where the page of the file is missing, and the read goes on; whoever reads asks afterwards
 * whether the file is still what it was. A fault anywhere else goes to the handler that was there before. */
#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030b0000
#if !defined(_WIN32)
#define _GNU_SOURCE /* MAP_ANONYMOUS */
#endif
#include <Python.h>

#if defined(_WIN32) /* which does not let anybody cut off a file that is mapped */
static PyObject *guard_watch(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(args)) { return PyLong_FromLong(0); }
static PyObject *guard_forget(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(args)) { Py_RETURN_NONE; }
#else
#include <errno.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define MOST 4096

static struct {
    _Atomic uintptr_t start; /* 0 where the slot is free */
    _Atomic uintptr_t end;
} maps[MOST];
static _Atomic int used; /* slots that were ever taken */
static uintptr_t page;
static struct sigaction before;

static int is_watched(uintptr_t address)
{
    int count = atomic_load(&used);
    for (int i = 0; i < count; i++) {
        uintptr_t start = atomic_load(&maps[i].start);
        if (start && address >= start && address < atomic_load(&maps[i].end)) return 1;
    }
    return 0;
}

/* Only calls that a signal handler may make. */
static void on_bus_error(int number, siginfo_t *info, void *context)
{
    uintptr_t at = (uintptr_t)info->si_addr & ~(page - 1);
    int error = errno;
    if (is_watched(at)) {
        int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED;
        void *memory = mmap((void *)at, page, PROT_READ | PROT_WRITE, flags, -1, 0);
        if (memory != MAP_FAILED) {
            memset(memory, 0xFF, page);
            errno = error;
            return;
        }
    }
    errno = error;
    if (before.sa_flags & SA_SIGINFO)
        before.sa_sigaction(number, info, context);
    else if (before.sa_handler != SIG_DFL && before.sa_handler != SIG_IGN)
        before.sa_handler(number);
    else
        sigaction(SIGBUS, &before, NULL); /* and the read, made once more, ends the process */
}

static int install(void)
{
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_sigaction = on_bus_error;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
    sigemptyset(&action.sa_mask);
    page = (uintptr_t)sysconf(_SC_PAGESIZE);
    return sigaction(SIGBUS, &action, &before);
}

/* The GIL is held here, so that nobody else takes a slot. */
static PyObject *guard_watch(PyObject *Py_UNUSED(module), PyObject *args)
{
    unsigned long long address, nbytes;
    if (!PyArg_ParseTuple(args, "KK", &address, &nbytes)) return NULL;
    if (!page && install()) {
        page = 0;
        return PyErr_SetFromErrno(PyExc_OSError);
    }
    int slot = 0;
    while (slot < MOST && atomic_load(&maps[slot].start)) slot++;
    if (slot == MOST || !address || !nbytes) return PyLong_FromLong(-1);
    atomic_store(&maps[slot].end, (uintptr_t)(address + nbytes));
    atomic_store(&maps[slot].start, (uintptr_t)address & ~(page - 1));
    if (slot >= atomic_load(&used)) atomic_store(&used, slot + 1);
    return PyLong_FromLong(slot);
}

static PyObject *guard_forget(PyObject *Py_UNUSED(module), PyObject *args)
{
    int slot;
    if (!PyArg_ParseTuple(args, "i", &slot)) return NULL;
    if (slot >= 0 && slot < MOST) atomic_store(&maps[slot].start, 0);
    Py_RETURN_NONE;
}
#endif

static PyMethodDef methods[] = {
    {"watch", guard_watch, METH_VARARGS, "watch(address, nbytes) -> slot, or -1"},
    {"forget", guard_forget, METH_VARARGS, "forget(slot)"},
    {NULL, NULL, 0, NULL},
};

static PyModuleDef_Slot slots[] = {{0, NULL}};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT, "_guard", "Maps of files that may be cut off.", 0, methods, slots, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__guard(void) { return PyModuleDef_Init(&module); }
