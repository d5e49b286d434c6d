// Run a model that `detlite export --format aoti` wrote, without Python. docs/export.md shows how to
// compile this file. Arguments: model.pt2, detlite/_C.abi3.so, a file of normalized float32 pixels
// [height, width, 3], the height and the width. Both are multiples of 32.
#include <ATen/ATen.h>
#include <dlfcn.h>
#include <torch/csrc/inductor/aoti_package/model_package_loader.h>

#include <iostream>

// _C.abi3.so refers to this variable of the Python runtime. Its Python functions are not called here.
extern "C" {
void* PyExc_AttributeError = nullptr;
}

int main(int argc, char** argv) {
  if (argc != 6 || !dlopen(argv[2], RTLD_LAZY | RTLD_GLOBAL)) {  // registers detlite's operators
    std::cerr << (argc == 6 ? dlerror() : "see the head of export_example.cpp") << '\n';
    return 2;
  }
  const int64_t height = std::stoll(argv[4]), width = std::stoll(argv[5]);
  const auto stored = at::from_file(argv[3], false, height * width * 3, at::kFloat);
  const auto pixels = stored.view({1, height, width, 3}).permute({0, 3, 1, 2});  // channels-last
  const auto sizes = at::full({1, 2}, height, at::kLong);  // of the image without padding
  sizes[0][1] = width;
  const auto outputs = torch::inductor::AOTIModelPackageLoader(argv[1]).run({pixels, sizes});
  const auto boxes = outputs[0][0], scores = outputs[1][0], labels = outputs[2][0], valid = outputs[3][0];
  for (int64_t i = 0; i < valid.size(0) && valid[i].item<bool>(); ++i) {
    std::cout << labels[i].item<int64_t>() << ' ' << scores[i].item<float>();
    for (int64_t k = 0; k < 4; ++k) std::cout << ' ' << boxes[i][k].item<float>();
    std::cout << '\n';
  }
}
