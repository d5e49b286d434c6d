// The Python module detlite._C. Loading it registers the operators torch.ops.detlite.*, which the
// other files declare next to their kernels. The module has them as attributes.
#include <Python.h>

#include <string>

namespace {

PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    "_C",
    "The compiled operators of detlite, the same as in torch.ops.detlite.",
    -1,
    nullptr,
    nullptr,
    nullptr,
    nullptr,
    nullptr,
};

// Adds every operator of torch.ops.detlite to the module under its name without the overload.
// Returns false if a Python error is set.
bool add_operators(PyObject* module) {
  const std::string prefix = "detlite::";
  PyObject* torch = PyImport_ImportModule("torch._C");
  PyObject* names =
      torch ? PyObject_CallMethod(torch, "_dispatch_get_all_op_names", nullptr) : nullptr;
  PyObject* ops = torch ? PyImport_ImportModule("torch.ops") : nullptr;
  PyObject* library = ops ? PyObject_GetAttrString(ops, "detlite") : nullptr;
  bool ok = names && library;
  for (Py_ssize_t i = 0; ok && i < PyList_Size(names); ++i) {
    PyObject* bytes = PyUnicode_AsUTF8String(PyList_GetItem(names, i));
    std::string name = bytes ? PyBytes_AsString(bytes) : "";
    Py_XDECREF(bytes);
    if (name.compare(0, prefix.size(), prefix) != 0) continue;
    name = name.substr(prefix.size(), name.find('.') - prefix.size());
    PyObject* op = PyObject_GetAttrString(library, name.c_str());
    ok = op && PyObject_SetAttrString(module, name.c_str(), op) == 0;
    Py_XDECREF(op);
  }
  Py_XDECREF(library);
  Py_XDECREF(ops);
  Py_XDECREF(names);
  Py_XDECREF(torch);
  return ok;
}

}  // namespace

PyMODINIT_FUNC PyInit__C() {
  PyObject* module = PyModule_Create(&definition);
  if (module && !add_operators(module)) Py_CLEAR(module);
  return module;
}
