// The operators' schemas, and the Python module detlite._C that reaches them by name.
#include <Python.h>

#include <string>
#include <vector>

#include <torch/csrc/stable/library.h>

namespace {

// Operators on RoIs are two schemas of one name. `name.maps` is the kernel, over the maps of a
// pyramid. The other takes one map and the arguments of maskrcnn-benchmark's and torchvision's _C;
// it has no kernel of its own, detlite/ops registers it as a call of the first.
constexpr const char* kSchemas[] = {
    "nms(Tensor boxes, Tensor scores, float iou_threshold) -> Tensor",
    "batched_nms(Tensor boxes, Tensor scores, Tensor idxs, float iou_threshold) -> Tensor",
    "padded_nms(Tensor boxes, Tensor scores, Tensor groups, Tensor valid, float iou_threshold, "
    "int limit) -> (Tensor index, Tensor kept)",
    "match_boxes(Tensor truth, Tensor valid, Tensor candidates) "
    "-> (Tensor index, Tensor iou, Tensor best)",
    "roi_align_forward(Tensor input, Tensor rois, float spatial_scale, int pooled_height, "
    "int pooled_width, int sampling_ratio, bool aligned=False) -> Tensor",
    "roi_align_backward(Tensor grad, Tensor rois, float spatial_scale, int pooled_height, "
    "int pooled_width, int batch_size, int channels, int height, int width, int sampling_ratio, "
    "bool aligned=False) -> Tensor",
    "roi_pool_forward(Tensor input, Tensor rois, float spatial_scale, int pooled_height, "
    "int pooled_width, bool need_argmax=True) -> (Tensor output, Tensor argmax)",
    "roi_pool_backward(Tensor grad, Tensor rois, Tensor argmax, float spatial_scale, "
    "int pooled_height, int pooled_width, int batch_size, int channels, int height, int width) "
    "-> Tensor",
    // Without default values: torch 2.11 drops arguments that equal them before an autograd rule sees
    // them, and then finds too many gradients for an operator that takes a list of tensors.
    "roi_align_forward.maps(Tensor[] inputs, Tensor rois, Tensor levels, float[] spatial_scales, "
    "int pooled_height, int pooled_width, int sampling_ratio, bool aligned) -> Tensor",
    "roi_align_backward.maps(Tensor grad, Tensor rois, Tensor levels, float[] spatial_scales, "
    "int pooled_height, int pooled_width, int batch_size, int channels, int[] heights, "
    "int[] widths, int sampling_ratio, bool aligned) -> Tensor[]",
    "roi_pool_forward.maps(Tensor[] inputs, Tensor rois, Tensor levels, float[] spatial_scales, "
    "int pooled_height, int pooled_width, bool need_argmax) -> (Tensor output, Tensor argmax)",
    "roi_pool_backward.maps(Tensor grad, Tensor rois, Tensor levels, Tensor argmax, "
    "float[] spatial_scales, int pooled_height, int pooled_width, int batch_size, int channels, "
    "int[] heights, int[] widths) -> Tensor[]",
    "sigmoid_focal_loss_forward(Tensor inputs, Tensor targets, float alpha, float gamma) -> Tensor",
    "sigmoid_focal_loss_backward(Tensor grad, Tensor inputs, Tensor targets, float alpha, "
    "float gamma) -> Tensor",
    "paste_masks_rle(Tensor probs, Tensor boxes, int height, int width, float threshold) "
    "-> (Tensor data, Tensor ends)",
    "mask_intersections(Tensor data, Tensor lengths, Tensor pixels, Tensor index, "
    "Tensor other_data, Tensor other_lengths, Tensor other_pixels, Tensor ranges) "
    "-> (Tensor shared, Tensor areas, Tensor other_areas)",
    "match_detections(Tensor overlaps, Tensor groups, Tensor crowd, Tensor ignored, "
    "Tensor uncounted, Tensor thresholds) -> Tensor",
    "crop_masks(Tensor values, Tensor pieces, Tensor instances, Tensor frames, Tensor index, "
    "Tensor boxes, int resolution, bool soft) -> Tensor",
    "heatmap_peaks(Tensor maps, Tensor boxes) -> (Tensor keypoints, Tensor scores)",
};

std::string name_of(const std::string& schema) { return schema.substr(0, schema.find('(')); }

// The names that the module has. Torch finds an overload, "name.overload", by the plain name.
std::vector<std::string> names() {
  std::vector<std::string> result;
  for (const char* schema : kSchemas) {
    const std::string name = name_of(schema);
    if (name.find('.') == std::string::npos) result.push_back(name);
  }
  return result;
}

// Module attributes are looked up here when they are not in the module's own dictionary (PEP 562).
PyObject* module_getattr(PyObject* module, PyObject* name) {
  PyObject* utf8 = PyUnicode_AsUTF8String(name);
  if (!utf8) return nullptr;
  const std::string wanted = PyBytes_AsString(utf8);
  Py_DECREF(utf8);

  std::string known;
  for (const std::string& op : names()) {
    if (op == wanted) {
      PyObject* torch = PyImport_ImportModule("torch");
      PyObject* ops = torch ? PyObject_GetAttrString(torch, "ops") : nullptr;
      PyObject* space = ops ? PyObject_GetAttrString(ops, "detlite") : nullptr;
      PyObject* packet = space ? PyObject_GetAttr(space, name) : nullptr;
      // Kept in the module, so that the next access is an ordinary one.
      if (packet && PyObject_SetAttr(module, name, packet) < 0) Py_CLEAR(packet);
      Py_XDECREF(space);
      Py_XDECREF(ops);
      Py_XDECREF(torch);
      return packet;
    }
    known += (known.empty() ? "" : ", ") + op;
  }
  PyErr_Format(PyExc_AttributeError, "detlite._C has no operator '%s'; it has %s", wanted.c_str(),
               known.c_str());
  return nullptr;
}

PyObject* module_dir(PyObject* /*module*/, PyObject* /*unused*/) {
  PyObject* list = PyList_New(0);
  for (const std::string& op : names()) {
    PyObject* name = list ? PyUnicode_FromString(op.c_str()) : nullptr;
    if (!name || PyList_Append(list, name) < 0) Py_CLEAR(list);
    Py_XDECREF(name);
  }
  return list;
}

PyMethodDef methods[] = {
    {"__getattr__", module_getattr, METH_O, nullptr},
    {"__dir__", module_dir, METH_NOARGS, nullptr},
    {nullptr, nullptr, 0, nullptr},
};

PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    "_C",
    "The compiled operators of detlite, the same that torch.ops.detlite holds.",
    -1,
    methods,
    nullptr,
    nullptr,
    nullptr,
    nullptr,
};

}  // namespace

STABLE_TORCH_LIBRARY(detlite, m) {
  for (const char* schema : kSchemas) m.def(schema);
}

PyMODINIT_FUNC PyInit__C() { return PyModule_Create(&definition); }
