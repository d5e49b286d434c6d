// The schemas of all operators, and the Python module detlite._C, which has them as attributes.
#include <Python.h>

#include <string>

#include <torch/csrc/stable/library.h>

namespace {

// RoI operators have two schemas each. `name.maps` has the kernels; its input is a list of the maps
// of a feature pyramid. The other schema has one map and the arguments of maskrcnn-benchmark's _C;
// detlite/ops implements it as a call of the first.
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
    // Without default values: torch 2.11 drops arguments that equal them before an autograd rule
    // sees them, and then finds too many gradients for an operator that takes a list of tensors.
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
    "encode_polygons(Tensor corners, Tensor polygons, Tensor masks, Tensor sizes) "
    "-> (Tensor data, Tensor ends)",
    "precision_recall(Tensor outcomes, Tensor scores, Tensor ranks, Tensor ends, "
    "Tensor positives, Tensor limits, Tensor recall_thresholds, int max_dets) "
    "-> (Tensor precision, Tensor recall)",
    "read_annotations(Tensor text, int chunk_bytes) -> Tensor[]",
    "box_overlaps(Tensor boxes, Tensor others, Tensor crowd, Tensor ranges) -> Tensor",
    "crop_masks(Tensor values, Tensor pieces, Tensor instances, Tensor frames, Tensor index, "
    "Tensor boxes, int resolution, bool soft) -> Tensor",
    "heatmap_peaks(Tensor maps, Tensor boxes) -> (Tensor keypoints, Tensor scores)",
};

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
  PyObject* torch = PyImport_ImportModule("torch");
  PyObject* ops = torch ? PyObject_GetAttrString(torch, "ops") : nullptr;
  PyObject* library = ops ? PyObject_GetAttrString(ops, "detlite") : nullptr;
  bool ok = library != nullptr;
  for (const std::string schema : kSchemas) {
    if (!ok) break;
    const std::string name = schema.substr(0, schema.find_first_of(".("));
    PyObject* op = PyObject_GetAttrString(library, name.c_str());
    ok = op && PyObject_SetAttrString(module, name.c_str(), op) == 0;
    Py_XDECREF(op);
  }
  Py_XDECREF(library);
  Py_XDECREF(ops);
  Py_XDECREF(torch);
  return ok;
}

}  // namespace

STABLE_TORCH_LIBRARY(detlite, m) {
  for (const char* schema : kSchemas) m.def(schema);
}

PyMODINIT_FUNC PyInit__C() {
  PyObject* module = PyModule_Create(&definition);
  if (module && !add_operators(module)) Py_CLEAR(module);
  return module;
}
